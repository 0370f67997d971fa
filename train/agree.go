package train

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"penstock.example/group"
)

// Fact is something that all processes of a run must have in common. Its name is as the user knows
// it, such as "--seed", and its value as he wrote it.
type Fact struct {
	Name, Value string
}

// DisagreementError lists the facts for which ranks have other values than rank 0, such as
// "rank 2 has --seed 7, rank 0 has 8".
type DisagreementError struct {
	Differences []string
}

func (e *DisagreementError) Error() string {
	return "train: the processes do not run the same training: " + strings.Join(e.Differences, "; ") +
		"; start all with the same program, command line and data"
}

// Agree returns nil if all members of a group have the same facts, and a *DisagreementError on every
// member otherwise. All members call it, in the order of their other calls of Gather. It blocks
// until they have. Names are distinct.
func Agree(ctx context.Context, g *group.Group, facts []Fact) error {
	lists, err := group.Meet(ctx, g, "facts of the run", facts, nil)
	if err != nil {
		return fmt.Errorf("train: comparing the processes: %w", err)
	}
	value := func(rank int, name string) string {
		for _, f := range lists[rank] {
			if f.Name == name {
				return cmp.Or(f.Value, "none")
			}
		}
		return "none"
	}
	e, compared := &DisagreementError{}, map[string]bool{}
	for _, f := range slices.Concat(lists...) {
		for rank := range lists {
			if v, first := value(rank, f.Name), value(0, f.Name); v != first && !compared[f.Name] {
				compared[f.Name] = true // one rank of each fact will do
				e.Differences = append(e.Differences,
					fmt.Sprintf("rank %d has %s %s, rank 0 has %s", rank, f.Name,
						v, first))
			}
		}
	}
	if e.Differences == nil {
		return nil
	}
	return e
}
