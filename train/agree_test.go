package train_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock.example/group"
	"penstock.example/train"
)

// agree has each member of a group state its facts, and returns what each was told.
func agree(t *testing.T, facts ...[]train.Fact) []error {
	t.Helper()
	members := group.Local(len(facts))
	errs := make([]error, len(facts))
	var wg sync.WaitGroup
	for rank, g := range members {
		wg.Go(func() { errs[rank] = train.Agree(t.Context(), g, facts[rank]) })
	}
	wg.Wait()
	for _, g := range members {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	return errs
}

func TestAgree(t *testing.T) {
	facts := func(pairs ...string) (out []train.Fact) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, train.Fact{Name: pairs[i], Value: pairs[i+1]})
		}
		return out
	}
	same := facts("--model", "mlp", "--seed", "8")
	for _, row := range []struct {
		facts [][]train.Fact
		want  string // "" is agreement
	}{
		{[][]train.Fact{same}, ""},
		{[][]train.Fact{same, same, same}, ""},
		{[][]train.Fact{nil, nil}, ""},
		{[][]train.Fact{same, same, facts("--model", "mlp", "--seed", "7"), same}, "rank 2 has --seed 7, ranks 0, 1 and 3 have 8"},
		{[][]train.Fact{same, facts("--model", "gpt", "--seed", "8")}, "rank 0 has --model mlp, rank 1 has gpt"},
		{[][]train.Fact{same, same, facts("--seed", "8", "--model", "gpt"), facts("--model", "gpt", "--seed", "9")},
			"ranks 0 and 1 have --model mlp, ranks 2 and 3 have gpt; rank 3 has --seed 9, ranks 0, 1 and 2 have 8"},
		{[][]train.Fact{same, facts("--model", "mlp")}, "rank 0 has --seed 8, rank 1 has none"},
		{[][]train.Fact{facts("--model", "mlp"), same}, "rank 0 has --seed none, rank 1 has 8"},
		{[][]train.Fact{facts("a", "1"), facts("a", "2"), facts("a", "1"), facts("a", "3")}, "rank 1 has a 2, rank 3 has 3, ranks 0 and 2 have 1"},
	} {
		for rank, err := range agree(t, row.facts...) {
			var e *train.DisagreementError
			switch {
			case row.want == "" && err != nil:
				t.Errorf("%v: rank %d: %v", row.facts, rank, err)
			case row.want == "":
			case !errors.As(err, &e) || !strings.Contains(err.Error(), "the same training: "+row.want+"; start all with the same program"):
				t.Errorf("%v: rank %d: got  %v\nwant %s", row.facts, rank, err, row.want)
			}
		}
	}
}

// A member that is gone is no disagreement.
func TestAgreeWithAMemberThatHasFailed(t *testing.T) {
	members := group.Local(2)
	members[1].Fail(group.Failure{Stage: -1, MicroBatch: -1, Message: "no data"})
	err := train.Agree(context.Background(), members[0], nil)
	var failed *group.FailedError
	if !errors.As(err, &failed) || failed.Rank != 1 || !strings.Contains(err.Error(), "no data") {
		t.Errorf("got %v", err)
	}
	for _, g := range slices.Backward(members) {
		_ = g.Close()
	}
}
