package train

import (
	"context"
	"fmt"
	"slices"

	"penstock.example/group"
	"penstock.example/nn"
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

// meet returns what every member says, by rank, or an error on all of them if one has failed.
func meet[T any](p peers, what string, mine T, failed error) ([]T, error) {
	return group.Meet(context.Background(), p.group, "train: "+what, mine, failed)
}

// gather returns what every member says, by rank.
func gather[T any](p peers, what string, mine T) ([]T, error) { return meet(p, what, mine, nil) }

// agree returns an error on all members if one of them has failed.
func (p peers) agree(what string, failed error) error {
	_, err := meet(p, what, 0, failed)
	return err
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
