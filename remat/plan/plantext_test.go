package plan_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"penstock/remat/plan"
)

func TestPlanString(t *testing.T) {
	list := parseOps(t, "K0 F1 F2 F3 L K0 F1 F2 S3 B3 K0 F1 S2 B2 K0 S1 B1 S0 B0")
	for want, p := range map[string]plan.Plan{
		"19 operations, peak 6 bytes of 7, 17.25 us (no plan takes less than 17)\n     0  K0 F1 F2 F3 L  K0 F1 F2 S3 B3 K0 F1 S2 B2 K0 S1\n    16  B1 S0 B0\n": {
			Feasible: true, Limit: 7, Peak: 6, Time: 17.25, LowerBound: 17, Ops: list},
		"1 operations, peak 6 bytes, no limit, 1 us (no plan takes less than 1)\n     0  L\n": {Feasible: true, Peak: 6, Time: 1, LowerBound: 1, Ops: list[4:5]},
		"not feasible: 6 bytes of 5\n": {Limit: 5, Peak: 6},
	} {
		if got := p.String(); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
}

func TestDiff(t *testing.T) {
	for _, test := range []struct{ reason, a, b, want string }{
		{"the same", "S0 S1 L B1 B0", "S0 S1 L B1 B0", ""},
		{"nothing", "", "", ""},
		{"from nothing", "", "S0 L B0", "+ 0: S0 L B0\n"},
		{"to nothing", "S0 L B0", "", "- 0: S0 L B0\n"},
		{"in the middle", "S0 S1 L B1 B0", "K0 F1 L S0 S1 B1 B0", "+ 0: K0 F1 L\n- 2: L\n"},
		{"put in", "S0 L B0", "S0 S1 L B0", "+ 1: S1\n"},
		{"left out at the end", "S0 L B0", "S0 L", "- 2: B0\n"},
	} {
		got := plan.Diff(plan.Plan{Ops: parseOps(t, test.a)}, plan.Plan{Ops: parseOps(t, test.b)})
		if got != test.want {
			t.Errorf("%s: got\n%swant\n%s", test.reason, got, test.want)
		}
	}
	got := plan.Diff(plan.Plan{Feasible: true, Limit: 1, Peak: 2, Time: 3, LowerBound: 4}, plan.Plan{Limit: 5, Peak: 6, Time: 7.5, LowerBound: 8, Chain: "c"})
	want := "chain:  -> c\nfeasible: true -> false\nlimit_bytes: 1 -> 5\npeak_bytes: 2 -> 6\ntime_us: 3 -> 7.5\nlower_bound_us: 4 -> 8\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestDiffMakesOneOfTheOther: what a diff leaves out and puts in turns a into b, and it is no longer than it has to be.
func TestDiffMakesOneOfTheOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		few := rapid.SliceOfN(rapid.SampledFrom([]plan.Op{{Kind: plan.Forward}, {Kind: plan.ForwardSave}, {Kind: plan.LossStep}}), 0, 12)
		a, b := few.Draw(t, "a"), few.Draw(t, "b")
		diff := plan.Diff(plan.Plan{Ops: a}, plan.Plan{Ops: b})
		var got []plan.Op
		rest, changes := a, 0
		keep := func(n int) { got, rest = append(got, rest[:n]...), rest[n:] }
		for line := range strings.Lines(diff) {
			number, text, _ := strings.Cut(strings.TrimSpace(line[2:]), ": ")
			n, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			list, err := plan.ParseOps(text)
			if err != nil {
				t.Fatal(err)
			}
			changes += len(list)
			if line[0] == '+' {
				keep(n - len(got))
				got = append(got, list...)
				continue
			}
			keep(n - (len(a) - len(rest)))
			if !slices.Equal(rest[:len(list)], list) {
				t.Fatalf("%sis not in %v", line, a)
			}
			rest = rest[len(list):]
		}
		keep(len(rest))
		if !slices.Equal(got, b) {
			t.Fatalf("%v became %v, want %v, by\n%s", a, got, b, diff)
		}
		if least := len(a) + len(b) - 2*longest(a, b); changes != least {
			t.Fatalf("%v to %v: %d changes, want %d:\n%s", a, b, changes, least, diff)
		}
	})
}

// longest is the length of the longest common subsequence, by the table of all beginnings.
func longest(a, b []plan.Op) int {
	row := make([]int, len(b)+1)
	for _, x := range a {
		diagonal := 0
		for j, y := range b {
			above := row[j+1]
			row[j+1] = max(above, row[j])
			if x == y {
				row[j+1] = diagonal + 1
			}
			diagonal = above
		}
	}
	return row[len(b)]
}

// TestDiffOfLongPlans: plans that differ everywhere take no more than a moment.
func TestDiffOfLongPlans(t *testing.T) {
	var a, b []plan.Op
	for i := range 50_000 {
		a = append(a, plan.Op{Kind: plan.Forward, Layer: i})
		b = append(b, plan.Op{Kind: plan.ForwardSave, Layer: i})
	}
	if lines := strings.Count(plan.Diff(plan.Plan{Ops: a}, plan.Plan{Ops: b}), "\n"); lines != 2 {
		t.Errorf("%d lines, want all left out and all put in", lines)
	}
}
