package link

import (
	"fmt"
	"slices"
	"testing"

	"penstock.example/schedule"
	"pgregory.net/rapid"
)

// Each link is in one round, no process is twice in a round, and there are few rounds.
func TestRounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "processes")
		var links []schedule.Edge
		degree := map[int]int{}
		for range rapid.IntRange(0, 40).Draw(t, "links") {
			l := schedule.Edge{From: rapid.IntRange(0, n-1).Draw(t, "from"),
				To: rapid.IntRange(0, n-1).Draw(t, "to")}
			if !slices.Contains(links, l) && l.From != l.To {
				degree[l.From]++
				degree[l.To]++
			}
			links = append(links, l)
		}
		most := 0
		for _, d := range degree {
			most = max(most, d)
		}
		all := rounds(links)
		again := rapid.Permutation(links).Draw(t, "in another order")
		if got := rounds(again); fmt.Sprint(got) != fmt.Sprint(all) { // all processes agree
			t.Fatalf("%v, and in another order %v", all, got)
		}
		if len(all) > max(2*most-1, 0) {
			t.Fatalf("%d rounds for %d links a process", len(all), most)
		}
		seen := map[schedule.Edge]int{}
		for _, r := range all {
			in := map[int]bool{}
			for _, l := range r {
				seen[l]++
				if in[l.From] || in[l.To] {
					t.Fatalf("a process is twice in %v", r)
				}
				in[l.From], in[l.To] = true, true
			}
		}
		for _, l := range links {
			if want := map[bool]int{true: 1, false: 0}[l.From != l.To]; seen[l] != want {
				t.Fatalf("%v is in %d rounds, want %d", l, seen[l], want)
			}
		}
	})
	var row []schedule.Edge
	for i := range 5 {
		row = append(row, schedule.Edge{From: i, To: i + 1}, schedule.Edge{From: i + 1, To: i})
	}
	if got := fmt.Sprint(rounds(row)); len(rounds(row)) != 4 {
		t.Errorf("neighbours in a row: %s, want 4 rounds", got)
	}
}
