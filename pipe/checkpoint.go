package pipe

import (
	"fmt"
	"slices"
	"strings"
)

// Checkpoint is a policy: for which micro-batches a stage keeps only its input in forward and
// recomputes the rest before backward. It holds for all stages, or is a list with a policy for each
// stage, such as "always,never". The command's --checkpoint takes the same text. The zero value is
// ExceptLast.
type Checkpoint string

const (
	// ExceptLast recomputes every micro-batch but the one whose backward comes first, which would
	// be recomputed at once. In ascending order that is micro-batch 0. It is counted on the real
	// number of micro-batches: with one, nothing is recomputed.
	ExceptLast Checkpoint = "except_last"
	// Never keeps everything.
	Never Checkpoint = "never"
	// Always recomputes every micro-batch.
	Always Checkpoint = "always"
	// Optimal keeps and recomputes, layer by layer and micro-batch by micro-batch, what makes a
	// step shortest under a number of bytes (Config.Budget). The first step of batches of a new
	// size measures the layers and plans; see Pipe.Plan.
	Optimal Checkpoint = "optimal"
)

// PerStage is the list that gives each stage its policy.
func PerStage(policies ...Checkpoint) Checkpoint {
	words := make([]string, len(policies))
	for i, k := range policies {
		words[i] = k.String()
	}
	return Checkpoint(strings.Join(words, ","))
}

// String is the policy's text.
func (k Checkpoint) String() string {
	if k == "" {
		return string(ExceptLast)
	}
	return string(k)
}

// Stages lists the policies of stages 0 to stages-1. A word that is no policy, and a list of
// another length, are a *ConfigError.
func (k Checkpoint) Stages(stages int) ([]Checkpoint, error) {
	refuse := func(problem, remedy string) error {
		return &ConfigError{Of: "pipe", Field: "Checkpoint", Value: k.String(), Problem: problem, Remedy: remedy}
	}
	var out []Checkpoint
	for _, word := range strings.Split(k.String(), ",") {
		switch one := Checkpoint(word); one {
		case ExceptLast, Never, Always, Optimal:
			out = append(out, one)
		default:
			return nil, refuse(fmt.Sprintf("%q is no policy", word),
				"want never, except_last, always or optimal, or a list with one for each stage")
		}
	}
	switch len(out) {
	case 1:
		return slices.Repeat(out, max(stages, 0)), nil
	case stages:
		return out, nil
	}
	return nil, refuse(fmt.Sprintf("%d policies for %d stages", len(out), stages), "want one for each stage, or one for all")
}
