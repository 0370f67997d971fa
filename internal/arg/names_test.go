package arg_test

import (
	"testing"

	"penstock.example/internal/arg"
)

func TestDiffer(t *testing.T) {
	for _, row := range []struct {
		values map[int]string
		want   string
	}{
		{map[int]string{0: "1", 3: "1"}, ""},
		{map[int]string{0: "8", 2: "7"}, "node 0 has --x 8, node 2 has 7"},
		{map[int]string{0: "8", 1: "8", 2: "7", 5: "8"}, "node 2 has --x 7, nodes 0, 1 and 5 have 8"},
		{map[int]string{1: "", 2: "9", 3: "9"}, "node 1 has --x none, nodes 2 and 3 have 9"},
		{map[int]string{0: "a", 1: "b", 2: "b", 3: "c"}, "node 0 has --x a, node 3 has c, nodes 1 and 2 have b"},
	} {
		if got := arg.Differ("node", "--x", row.values); got != row.want {
			t.Errorf("%v: %q; want %q", row.values, got, row.want)
		}
	}
}

func TestNumbered(t *testing.T) {
	var many []int
	for n := range 20 {
		many = append(many, n)
	}
	for want, numbers := range map[string][]int{"": nil, "rank 3": {3}, "ranks 3 and 5": {3, 5}, "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 4 more": many} {
		if got := arg.Numbered("rank", numbers); got != want {
			t.Errorf("%v: %q; want %q", numbers, got, want)
		}
	}
}
