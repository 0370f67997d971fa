package main

import (
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSpreadOf(t *testing.T) {
	for _, row := range []struct {
		values []float64
		want   spread
	}{
		{nil, spread{}}, {[]float64{3}, spread{3, 3, 3}}, {[]float64{5, 1, 2}, spread{2, 1, 5}},
		{[]float64{4, 1, 2, 8}, spread{3, 1, 8}},
	} {
		if got := spreadOf(row.values); got != row.want {
			t.Errorf("%v: got %v, want %v", row.values, got, row.want)
		}
	}
}

func TestRatiosAreOfRounds(t *testing.T) {
	if got := byRound([]float64{2, 9, 7}, []float64{1, 3}, ratio); !slices.Equal(got, []float64{2, 3}) {
		t.Errorf("got %v, want [2 3]", got)
	}
}

// steady is a side whose steps always take as long.
func steady(ms float64) side {
	return func(context.Context, time.Duration) (float64, error) { return ms, nil }
}

func TestPlayKeepsAnOpponentsFailureApart(t *testing.T) {
	broken := errors.New("broken")
	fails := func(context.Context, time.Duration) (float64, error) { return 0, broken }
	e := effort{Rounds: 2}
	if m, err := e.play(t.Context(), steady(2), fails); err != nil || m.Failure != broken {
		t.Errorf("their failure: got %v and the error %v", m.Failure, err)
	}
	if _, err := e.play(t.Context(), fails, steady(2)); err != broken {
		t.Errorf("our failure: got %v, want the error", err)
	}
	m, err := e.play(t.Context(), steady(2), steady(3))
	if err != nil || m.Faster() != spreadOf([]float64{1.5}) {
		t.Errorf("got %v and %v, want 1.5 in both rounds", m.Faster(), err)
	}
}

func TestDifference(t *testing.T) {
	if got := difference([]float64{1, 2}, []float64{1.5, 1}); got != 1 {
		t.Errorf("got %v, want 1", got)
	}
	if got := difference([]float64{1, 1}, []float64{math.NaN(), 1}); !math.IsNaN(got) {
		t.Errorf("a NaN and a zero: got %v, want NaN", got)
	}
}

func TestGoals(t *testing.T) {
	for _, x := range []struct {
		goal   float64
		atMost bool
		met    bool
	}{{1.2, false, true}, {1.3, false, false}, {1.2, true, true}, {1.1, true, false}} {
		if r := (row{Value: spread{Median: 1.2}, Goal: x.goal, AtMost: x.atMost}); r.met() != x.met {
			t.Errorf("1.2 and %+v: met is %v", x, r.met())
		}
	}
}

func TestReportShowsFailures(t *testing.T) {
	var r report
	_ = r.fail(row{What: "mlp"}, errors.New("Traceback:\n  line\nBackendFailed: no compiler\n"))
	r.add(row{What: "gpt", Value: spread{1.25, 1, 2}, Goal: 1.5})
	var b strings.Builder
	if err := r.text(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"failed", "BackendFailed: no compiler", "1.25", "1-2", ">= 1.5", "missed"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
}

func TestPartsAreKnown(t *testing.T) {
	b := &bench{}
	err := b.run(t.Context(), []string{"nothing"}, "text", io.Discard)
	if err == nil || !strings.Contains(err.Error(), "processes") {
		t.Errorf("an unknown part: got %v, want the list of parts", err)
	}
}
