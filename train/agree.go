package train

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"penstock.example/group"
	"penstock.example/internal/arg"
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
	var names []string
	values := map[string][]string{} // by rank; "" where a rank has none
	for rank, facts := range lists {
		for _, f := range facts {
			if values[f.Name] == nil {
				names, values[f.Name] = append(names, f.Name), make([]string, len(lists))
			}
			values[f.Name][rank] = f.Value
		}
	}
	e := &DisagreementError{}
	for _, name := range names {
		all := values[name]
		others := map[string][]int{}
		for rank, v := range all {
			others[v] = append(others[v], rank)
		}
		for rank, v := range all {
			if v == all[0] || others[v][0] != rank {
				continue
			}
			verb := "have"
			if len(others[v]) == 1 {
				verb = "has"
			}
			e.Differences = append(e.Differences, fmt.Sprintf("%s %s %s %s, rank 0 has %s",
				arg.Numbered("rank", others[v]), verb, name, cmp.Or(v, "none"), cmp.Or(all[0], "none")))
		}
	}
	if e.Differences == nil {
		return nil
	}
	return e
}
