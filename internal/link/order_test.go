package link

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/schedule"
)

// All processes have the same order. Links between neighbours of a row, at any distance, take four turns.
func TestOpeningOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, distance := rapid.IntRange(1, 8).Draw(t, "devices"), rapid.IntRange(1, 4).Draw(t, "distance")
		var edges []schedule.Edge
		for i := range n {
			edges = append(edges, schedule.Edge{From: i * distance, To: (i + 1) * distance},
				schedule.Edge{From: (i + 1) * distance, To: i * distance})
		}
		order := openingOrder(rapid.Permutation(edges).Draw(t, "edges"))
		if want := openingOrder(edges); !slices.Equal(order, want) {
			t.Fatalf("%v; want %v", order, want)
		}
		turns := map[int]int{} // by device: of its last link
		for _, e := range order {
			turn := 1 + max(turns[e.From], turns[e.To])
			if turns[e.From], turns[e.To] = turn, turn; turn > 4 {
				t.Fatalf("%v is opened in turn %d of %v", e, turn, order)
			}
		}
		if len(order) != len(edges) {
			t.Fatalf("%d of %d links", len(order), len(edges))
		}
	})
}
