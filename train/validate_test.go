package train_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
	"penstock.example/optim"
	"penstock.example/train"
)

// validating makes a run validate on the test set, save after each epoch, and write down what it does.
func validating(t testing.TB, s *rig, store train.Store, into *strings.Builder) {
	t.Helper()
	_, held := dataset(t)
	s.Validation = &train.Validation{Set: held, OnResult: func(v train.ValidationInfo) error {
		_, err := fmt.Fprintln(into, v.Step, v.Epoch, *v.Loss, *v.Accuracy, v.Better)
		return err
	}}
	s.OnEpoch = func(int) error {
		_, err := store.Save(s.Progress(), recipe(), s.model, s.Optimizer)
		return err
	}
}

// A validation follows each epoch; its checkpoint stays if it is the best, beside the newest ones; and
// it changes no weight.
func TestValidationKeepsTheBest(t *testing.T) {
	check(t)
	plain, closer := newRig(t, setup{})
	plain.Epochs = 4
	plain.run(t)
	want := sumOf(plain.model)
	closer()

	store := train.Store{Dir: t.TempDir(), Keep: 1}
	s, _ := newRig(t, setup{})
	var said strings.Builder
	validating(t, s, store, &said)
	s.Epochs = 4
	s.run(t)
	if got := sumOf(s.model); got != want {
		t.Error("a run that validates has other bits")
	}
	lines := strings.Split(strings.TrimSpace(said.String()), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "5 0 ") || !strings.HasSuffix(lines[0], "true") {
		t.Fatalf("said:\n%s", said.String())
	}
	best, epoch := 0, 0
	for i, line := range lines {
		if strings.HasSuffix(line, "true") {
			best, epoch = 5*(i+1), i
		}
	}
	c := latest(t, store)
	if c.Best == nil || c.Best.Step != int64(best) || c.Best.Epoch != epoch || c.Best.Since != 3-epoch {
		t.Errorf("the best is %+v after:\n%s", c.Best, said.String())
	}

	// A better one in the past is not removed, and one that was overtaken is.
	store = train.Store{Dir: t.TempDir(), Keep: 1}
	for _, row := range []struct {
		step, best int64
		want       []string
	}{
		{1, 1, []string{"step-000001"}},
		{2, 1, []string{"step-000001", "step-000002"}},
		{3, 1, []string{"step-000001", "step-000003"}},
		{4, 4, []string{"step-000004"}},
		{5, 0, []string{"step-000005"}},
	} {
		at := train.Progress{Step: row.step}
		if row.best > 0 {
			at.Best = &train.Best{Step: row.best}
		}
		must.Get(store.Save(at, recipe(), s.model, s.Optimizer))(t)
		if got := names(t, store.Dir); !reflect.DeepEqual(got, row.want) {
			t.Errorf("step %d, the best %d: %v; want %v", row.step, row.best, got, row.want)
		}
	}
}

// A run without progress ends after so many epochs, and is at its end when it is resumed, until it is
// given more patience.
func TestPatience(t *testing.T) {
	check(t)
	store := train.Store{Dir: t.TempDir()}
	s, closer := newRig(t, setup{})
	var said strings.Builder
	validating(t, s, store, &said)
	s.Validation.Patience = 2
	s.Best = &train.Best{Loss: -1} // never again
	s.Epochs = 9
	if r := s.run(t); !r.Stopped || r.Interrupted || r.Step != 10 || s.Best.Since != 2 {
		t.Errorf("%+v, %+v", r, s.Best)
	}
	closer()
	for _, row := range []struct {
		patience int
		want     train.Result
	}{{2, train.Result{Step: 10, Stopped: true}}, {3, train.Result{Step: 15, Stopped: true}}, {0,
		train.Result{Step: 20}}} {
		next, closer := resume(t, store, setup{})
		validating(t, next, store, &said)
		next.Best, next.Validation.Patience, next.Epochs = latest(t, store).Best, row.patience, 4
		if r := next.run(t); r != row.want {
			t.Errorf("patience %d: %+v; want %+v", row.patience, r, row.want)
		}
		closer()
	}
}

// A validation that is interrupted or fails is done when the run goes on, once, and nothing is lost.
func TestInterruptedValidation(t *testing.T) {
	check(t)
	var want strings.Builder
	whole, closer := newRig(t, setup{})
	validating(t, whole, train.Store{Dir: t.TempDir()}, &want)
	whole.Epochs = 2
	whole.run(t)
	sum := sumOf(whole.model)
	closer()

	broken := errors.New("broken")
	for _, resumed := range []bool{false, true} {
		store := train.Store{Dir: t.TempDir()}
		var said strings.Builder
		s, closer := newRig(t, setup{})
		validating(t, s, store, &said)
		s.Epochs = 2
		ctx, cancel := context.WithCancel(context.Background())
		s.Validation.Batch = 7
		s.Validation.OnBatch = func(int, int) { cancel() }
		r, err := s.Run(ctx)
		if err != nil || !r.Interrupted || r.Step != 5 || s.Progress().Position != (data.Position{Batch: 5}) {
			t.Fatalf("%+v, %v, %+v", r, err, s.Progress())
		}
		save(t, store, s)
		if resumed {
			closer()
			s, _ = resume(t, store, setup{})
			validating(t, s, store, &said)
			s.Epochs = 2
		}
		s.Validation.Batch, s.Validation.OnBatch = 0, nil
		tell := s.Validation.OnResult
		s.Validation.OnResult = func(train.ValidationInfo) error { return broken }
		if _, err := s.Run(context.Background()); !errors.Is(err, broken) {
			t.Fatal(err)
		}
		s.Validation.OnResult = tell
		s.run(t)
		if said.String() != want.String() || sumOf(s.model) != sum {
			t.Errorf("resumed %v: said\n%swant\n%s", resumed, said.String(), want.String())
		}
	}
}

// A run that Steps ends is validated at its end: as the end of an epoch where it is one, and else once
// as a partial epoch, which Patience does not count. A run that goes on validates no step twice.
func TestValidationAtTheEnd(t *testing.T) {
	check(t)
	for _, row := range []struct {
		steps []int64 // of runs that each go on from the one before
		want  string  // step, epoch, and whether it is partial
	}{
		{[]int64{5}, "5 0 false,"},
		{[]int64{10}, "5 0 false,10 1 false,"},
		{[]int64{3}, "3 0 true,"},
		{[]int64{7}, "5 0 false,7 1 true,"},
		{[]int64{5, 5, 10, 10}, "5 0 false,10 1 false,"},
		{[]int64{3, 3, 7, 10}, "3 0 true,5 0 false,7 1 true,10 1 false,"},
	} {
		store := train.Store{Dir: t.TempDir()}
		said, last := "", ""
		for i, steps := range row.steps {
			s, closer := newRig(t, setup{})
			if i > 0 {
				closer()
				s, closer = resume(t, store, setup{})
				s.Best = latest(t, store).Best
			}
			var ignored strings.Builder
			validating(t, s, store, &ignored)
			s.Validation.OnResult = func(v train.ValidationInfo) error {
				said += fmt.Sprint(v.Step, " ", v.Epoch, " ", v.Partial, ",")
				last = fmt.Sprint(v.Step)
				return nil
			}
			s.Steps = steps
			s.run(t)
			if s.Best == nil || fmt.Sprint(s.Best.Last) != last {
				t.Errorf("steps %v: best %+v; want one, validated last after step %s", row.steps, s.Best,
					last)
			}
			save(t, store, s)
			closer()
		}
		if said != row.want {
			t.Errorf("steps %v: validated %s; want %s", row.steps, said, row.want)
		}
	}

	s, _ := newRig(t, setup{})
	var said strings.Builder
	validating(t, s, train.Store{Dir: t.TempDir()}, &said)
	s.Best, s.Steps = &train.Best{Loss: -1}, 7 // never lower
	s.run(t)
	if s.Best.Since != 1 {
		t.Errorf("%d epochs without a better validation; want 1, as the second is partial", s.Best.Since)
	}
}

// A loss that does not fall lowers the rate, also in a run that is resumed between the losses.
func TestPlateau(t *testing.T) {
	check(t)
	store := train.Store{Dir: t.TempDir(), Keep: 1}
	var rates []float64
	run := func(start train.Progress, epochs int) {
		s, closer := newRig(t, setup{start: start})
		defer closer()
		var said strings.Builder
		validating(t, s, store, &said)
		s.Best, s.Epochs, s.LRSchedule = start.Best, epochs, func(int) float64 { return 0.4 }
		if s.Plateau = start.Plateau; s.Plateau == nil {
			s.Plateau = &optim.Plateau{Patience: 1, Factor: 0.5, Best: -1} // no loss is lower
		}
		s.OnStep = []train.Hook{func(i train.StepInfo) error { rates = append(rates, i.LR); return nil }}
		s.run(t)
	}
	run(train.Progress{}, 1)
	saved := latest(t, store)
	run(saved.Progress, 3)
	if got := fmt.Sprint(rates[4], rates[9], rates[10]); got != "0.4 0.4 0.2" || saved.Plateau.Bad != 1 {
		t.Errorf("the rates are %s, %+v after one epoch", got, saved.Plateau)
	}
}
