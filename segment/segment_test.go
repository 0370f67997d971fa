package segment_test

import (
	"slices"
	"strings"
	"testing"

	"penstock.example/nn"
	"penstock.example/segment"
)

// TestBoundaries: which skips and ties lie at each boundary, and what a unit does to them.
func TestBoundaries(t *testing.T) {
	m := network() // stash a is layer 1 and its pops 8 and 11; stash b is 4, its pop 9; the weight is that of layers 0, 3 and 12
	s := whole(t, m, 2, 2, 4, 2, 4)
	for i, want := range [][]int{nil, {2}, {2}, {2, 1}, {1}, nil} {
		if got := s.Crossing(i); !slices.Equal(got, want) {
			t.Errorf("boundary %d: pops to come %v, want %v", i, got, want)
		}
	}
	if pops, after := s.Goes(2, 0); pops != 0 || after != 0 {
		t.Errorf("a goes by unit 2 with %d pops, to %d", pops, after)
	}
	if pops, after := s.Goes(3, 0); pops != 1 || after != 0 {
		t.Errorf("a is popped %d times by unit 3 and goes to %d", pops, after)
	}
	if pops, after := s.Goes(3, 1); pops != 1 || after != -1 {
		t.Errorf("b is popped %d times by unit 3 and goes to %d", pops, after)
	}
	if s.Ties() != 1 || !s.Uses(1, 0) || s.Uses(2, 0) {
		t.Errorf("%d ties", s.Ties())
	}
	for boundary, want := range []int{0, 1, 1, 1, 1, 0} {
		if got := len(s.Tied(boundary)); got != want {
			t.Errorf("boundary %d: %d ties wait, want %d", boundary, got, want)
		}
	}
}

// TestPartOfAModel: skips enter and leave a segment by their keys.
func TestPartOfAModel(t *testing.T) {
	m := network()
	routes, err := m.SkipRoutes()
	if err != nil {
		t.Fatal(err)
	}
	s, err := segment.New(segment.Config{Layers: m.Layers(), Routes: routes, First: 3, Last: 9, Units: []int{3, 3}})
	if err != nil {
		t.Fatal(err)
	}
	a, b := nn.SkipKey{Name: "a"}, nn.SkipKey{Name: "b"}
	if s.Enters(a) != 0 || s.Enters(b) != -1 || s.Leaves(b) != 0 || s.Leaves(a) != -1 {
		t.Errorf("a enters at %d and leaves at %d, b at %d and %d", s.Enters(a), s.Leaves(a), s.Enters(b), s.Leaves(b))
	}
}

func TestNewRefuses(t *testing.T) {
	layers := network().Layers()
	for _, tt := range []struct {
		cfg  segment.Config
		want string
	}{
		{segment.Config{Layers: layers}, "a segment has at least one"},
		{segment.Config{Layers: layers, Last: 99}, "of 14"},
		{segment.Config{Layers: layers, Last: 14, Units: []int{14, 0}}, "unit 1 has 0 layers"},
		{segment.Config{Layers: layers, Last: 14, Units: []int{13}}, "have 13 layers, the segment 14"},
	} {
		if _, err := segment.New(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.cfg.Units, err, tt.want)
		}
	}
}
