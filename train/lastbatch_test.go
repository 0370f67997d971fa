package train_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"penstock.example/group"
	"penstock.example/train"
)

// An epoch's last batch with fewer rows than replicas ends a run before its first step, unless the run
// ends before that batch.
func TestShortLastBatch(t *testing.T) {
	check(t)
	// the 38 samples are three batches of 12 and one of 2
	for _, row := range []struct {
		accumulate, epochs int
		steps, from        int64
		refused            bool
	}{
		{0, 1, 0, 0, true}, {0, 0, 4, 0, true}, {0, 0, 3, 0, false}, {0, 0, 4, 3, true},
		{0, 0, 3, 2, false}, {4, 0, 1, 0, true}, {0, 0, 2, 2, false}, {2, 0, 1, 0, false},
	} {
		var all sync.WaitGroup
		for _, g := range group.Local(3) {
			start := train.Progress{Step: row.from}
			start.Position.Batch = int(row.from)
			all.Go(func() {
				s, closer := newRig(t, setup{batch: 12, chunks: 1, group: g, replicas: 3, accumulate: row.accumulate, start: start})
				s.Steps, s.Epochs = row.steps, row.epochs
				defer closer()
				r, err := s.Run(context.Background())
				var within *train.StepError
				switch {
				case !row.refused && (err != nil || r.Step != row.steps):
					t.Errorf("%+v: %+v, %v", row, r, err)
				case row.refused && (err == nil || errors.As(err, &within) || r.Step != row.from || !strings.Contains(err.Error(), "last batch has 2 rows for 3 replicas")):
					t.Errorf("%+v: after step %d: %v", row, r.Step, err)
				}
			})
		}
		all.Wait()
	}
}
