package group_test

import (
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/draws"
	"penstock.example/internal/torchtest"
)

func init() {
	scenarios["exchange"] = member(func(g *group.Group, _ func(string)) error {
		for range 3 {
			if err := exchange(g); err != nil {
				return err
			}
			if err := gatherAll(g); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestProcessesExchangeTensorsAndBytes(t *testing.T) {
	for _, size := range draws.Pick([]int{4}, []int{2, 3, 4}) {
		allGood(t, job(t, "exchange", config(t, size)))
	}
}

func TestMembersLeaveNothingBehind(t *testing.T) {
	torchtest.Check(t)
	cfg := config(t, 3)
	cfg.Silence = time.Minute
	all := inProcess(t, cfg)
	none(t, each(all, func(g *group.Group) error {
		if err := exchange(g); err != nil {
			return err
		}
		return gatherAll(g)
	}))
	began := time.Now()
	none(t, each(all, func(g *group.Group) error { return g.Close() }))
	if d := time.Since(began); d >= cfg.Silence {
		t.Errorf("closing took %v: somebody was waited for in vain", d)
	}
	for _, g := range all {
		if err := g.Err(); err != nil {
			t.Errorf("rank %d: %v", g.Rank(), err)
		}
	}
	all = inProcess(t, cfg) // the port is free
	none(t, each(all, func(g *group.Group) error { return g.Close() }))
}
