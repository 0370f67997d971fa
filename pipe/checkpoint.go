package pipe

import (
	"fmt"
	"slices"
	"strings"

	"penstock/planner"
)

// Checkpoint is a policy of recomputation. It says for which micro-batches a stage keeps only its
// input in forward and recomputes the rest before backward. It is one policy for all stages, or a
// list with one for each, such as "always,never". The command's --checkpoint takes the same text.
// The zero value is ExceptLast.
type Checkpoint string

const (
	// ExceptLast recomputes every micro-batch except the one whose backward comes first, because it
	// would be recomputed at once. In ascending order that is micro-batch 0. The micro-batches that
	// the batch really has count: with one, nothing is recomputed.
	ExceptLast = Checkpoint(planner.ExceptLast)
	// Never keeps everything and recomputes nothing.
	Never = Checkpoint(planner.Never)
	// Always recomputes every micro-batch.
	Always = Checkpoint(planner.Always)
	// Optimal chooses for each layer and micro-batch what to keep and what to recompute, so that a
	// step is shortest within a number of bytes (Config.Budget). The first step with batches of a
	// new size measures the layers and plans; see Pipe.Plan.
	Optimal = Checkpoint(planner.Optimal)
)

// PerStage makes a list with a policy for each stage.
func PerStage(policies ...Checkpoint) Checkpoint {
	words := make([]string, len(policies))
	for i, k := range policies {
		words[i] = k.String()
	}
	return Checkpoint(strings.Join(words, ","))
}

// String is the text of the policy or list.
func (k Checkpoint) String() string {
	if k == "" {
		return string(ExceptLast)
	}
	return string(k)
}

// Stages lists the policies of stages 0 to stages-1. It fails with a *ConfigError if a word is no
// policy, or a list has another length.
func (k Checkpoint) Stages(stages int) ([]Checkpoint, error) {
	refuse := func(problem, remedy string) error {
		return &ConfigError{Of: "pipe", Field: "Checkpoint", Value: k.String(), Problem: problem, Remedy: remedy}
	}
	var out []Checkpoint
	for _, word := range strings.Split(k.String(), ",") {
		if !slices.Contains(planner.Policies, planner.Policy(word)) {
			return nil, refuse(fmt.Sprintf("%q is no policy", word),
				"want never, except_last, always or optimal, or a list with one for each stage")
		}
		out = append(out, Checkpoint(word))
	}
	switch len(out) {
	case 1:
		return slices.Repeat(out, max(stages, 0)), nil
	case stages:
		return out, nil
	}
	return nil, refuse(fmt.Sprintf("%d policies for %d stages", len(out), stages), "want one for each stage, or one for all")
}
