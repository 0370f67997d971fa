package train

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"penstock/group"
	"penstock/nn"
)

// peers are the processes that train one model together, or this one alone where the group is nil.
// The members call the methods in the same order. They are not cancelled: the failure of a member
// ends them.
type peers struct{ group *group.Group }

func (p peers) rank() int {
	if p.group == nil {
		return 0
	}
	return p.group.Rank()
}

func (p peers) size() int {
	if p.group == nil {
		return 1
	}
	return p.group.Size()
}

// lost reports whether the group has failed, so that what the other members do is not known.
func (p peers) lost() bool { return p.group != nil && p.group.Err() != nil }

// gather returns what every member has given, in the order of ranks.
func gather[T any](p peers, what string, mine T) ([]T, error) {
	if p.group == nil {
		return []T{mine}, nil
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	texts, err := p.group.Gather(context.Background(), "train: "+what, text)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(texts))
	for rank, text := range texts {
		if err := json.Unmarshal(text, &all[rank]); err != nil {
			return nil, fmt.Errorf("%s of rank %d: %w", what, rank, err)
		}
	}
	return all, nil
}

// agree returns an error on all members if one of them has one: its own on a member that has, and
// on the others the text of the first.
func (p peers) agree(what string, mine error) error {
	if p.group == nil {
		return mine
	}
	all, err := gather(p, what, errorText(mine))
	if mine != nil {
		return mine
	}
	return cmp.Or(err, firstError(all))
}

// errorText is an error as members tell it each other: "" for none.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return strings.TrimPrefix(err.Error(), "train: ")
}

// firstError is the error of the first member that has told one.
func firstError(texts []string) error {
	for rank, text := range texts {
		if text != "" {
			return fmt.Errorf("rank %d: %s", rank, text)
		}
	}
	return nil
}

// owners returns the rank of the process that stands for each parameter and buffer of a model: the
// lowest of those in which it exists.
func (p peers) owners(params []nn.NamedParam) ([]int, error) {
	exist := make([]bool, len(params))
	for i, n := range params {
		exist[i] = n.Exists()
	}
	all, err := gather(p, "which parameters exist", exist)
	if err != nil {
		return nil, err
	}
	ranks := make([]int, len(params))
	var nowhere []string
	for rank, exist := range all {
		if len(exist) != len(params) {
			return nil, fmt.Errorf("the model has %d parameters and buffers on rank %d and %d on rank %d; want the same model on every rank",
				len(params), p.rank(), len(exist), rank)
		}
	}
	for i, n := range params {
		if ranks[i] = slices.IndexFunc(all, func(exist []bool) bool { return exist[i] }); ranks[i] < 0 {
			nowhere = append(nowhere, n.Name)
		}
	}
	if len(nowhere) > 0 {
		return nil, fmt.Errorf("%d parameters and buffers of the model exist in no process, %q the first; place the model first",
			len(nowhere), nowhere[0])
	}
	return ranks, nil
}
