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
// member otherwise. A fact has a name as the user knows it, such as "--seed", and a value as he wrote it. All
// members call Agree, in the order of their other collective calls. It blocks until they have.
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
		if rank > 0 { // one rank of each fact will do
			differences = append(differences, fmt.Sprintf("rank %d has %s %s, rank 0 has %s", rank, name,
				cmp.Or(all[rank][name], "none"), cmp.Or(first, "none")))
		}
	}
	if differences != nil {
		return &DisagreementError{differences}
	}
	return nil
}
