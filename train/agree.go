package train

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"penstock.example/group"
	"penstock.example/internal/arg"
)

// Fact is something that all processes of a run must have in common. Its name is as the user knows
// it, such as "--seed", and its value as he wrote it.
type Fact struct {
	Name, Value string
}

// DisagreementError is a difference between the processes of a run.
type DisagreementError struct {
	Differences []Difference
}

// Difference is a fact for which ranks have different values.
type Difference struct {
	Name   string
	Values []string // by rank; "" where a rank has none
}

// Error names each fact, the values, and the ranks that have them.
func (e *DisagreementError) Error() string {
	var parts []string
	for _, d := range e.Differences {
		parts = append(parts, d.String())
	}
	return "train: the processes do not run the same training: " + strings.Join(parts, "; ") +
		"; start all with the same program, command line and data"
}

// String is such as "rank 2 has --seed 7, ranks 0, 1 and 3 have 8". The values that fewest have come
// first.
func (d Difference) String() string {
	having := map[string][]int{}
	for rank, v := range d.Values {
		having[v] = append(having[v], rank)
	}
	values := slices.SortedFunc(maps.Keys(having), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(having[a]), len(having[b])), cmp.Compare(having[a][0], having[b][0]))
	})
	var parts []string
	name := d.Name + " "
	for _, v := range values {
		verb := " have "
		if len(having[v]) == 1 {
			verb = " has "
		}
		parts = append(parts, arg.Numbered("rank", having[v])+verb+name+cmp.Or(v, "none"))
		name = ""
	}
	return strings.Join(parts, ", ")
}

// Agree returns nil if all members of a group have the same facts, and a *DisagreementError on every
// member otherwise. All members call it, in the order of their other calls of Gather. It blocks
// until they have. Names are distinct.
func Agree(ctx context.Context, g *group.Group, facts []Fact) error {
	all, err := group.Meet(ctx, g, "facts of the run", facts, nil)
	if err != nil {
		return fmt.Errorf("train: comparing the processes: %w", err)
	}
	return disagreement(all)
}

// disagreement compares the facts of all ranks.
func disagreement(all [][]Fact) error {
	var names []string
	values := map[string][]string{}
	for rank, facts := range all {
		for _, f := range facts {
			if values[f.Name] == nil {
				names, values[f.Name] = append(names, f.Name), make([]string, len(all))
			}
			values[f.Name][rank] = f.Value
		}
	}
	e := &DisagreementError{}
	for _, name := range names {
		if len(slices.Compact(slices.Clone(values[name]))) > 1 {
			e.Differences = append(e.Differences, Difference{name, values[name]})
		}
	}
	if e.Differences == nil {
		return nil
	}
	return e
}
