package train

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"penstock.example/group"
)

// DisagreementError lists the facts that differ from rank 0's: "rank 2 has --seed 7, rank 0 has 8".
type DisagreementError struct {
	Differences []string
}

func (e *DisagreementError) Error() string {
	return "train: the processes do not run the same training: " + strings.Join(e.Differences, "; ") +
		"; start all with the same program, command line and data"
}

// Agree compares facts by name, such as "--seed", between the members of a group. If they differ it
// returns a *DisagreementError on every member. Agree is collective and blocks until all have called it.
func Agree(ctx context.Context, g *group.Group, facts map[string]string) error {
	all, err := group.Meet(ctx, g, "facts of the run", facts, nil)
	if err != nil {
		return fmt.Errorf("train: comparing the processes: %w", err)
	}
	names := map[string]string{}
	for _, facts := range all {
		maps.Copy(names, facts)
	}
	var differences []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		first := all[0][name]
		rank := slices.IndexFunc(all, func(facts map[string]string) bool { return facts[name] != first })
		if rank > 0 {
			differences = append(differences, fmt.Sprintf("rank %d has %s %s, rank 0 has %s", rank, name,
				cmp.Or(all[rank][name], "none"), cmp.Or(first, "none")))
		}
	}
	if differences != nil {
		return &DisagreementError{differences}
	}
	return nil
}
