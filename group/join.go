package group

import (
	"context"
	"errors"

	"penstock/internal/arg"
)

// Join makes this process a member of a group. It blocks until all members are there, ctx is done,
// or Config.Timeout has passed.
func Join(ctx context.Context, cfg Config) (*Group, error) {
	if err := arg.Context(ctx, "group"); err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return nil, errors.New("group: Join: not yet")
}
