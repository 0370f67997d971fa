package train_test

import (
	"strings"
	"sync"
	"testing"

	"penstock.example/group"
	"penstock.example/plan"
	"penstock.example/torch"
	"penstock.example/train"
)

// All members measure the same links, each of which takes time.
func TestLinksAreMeasured(t *testing.T) {
	members := group.Local(3)
	links, errs := make([]plan.Link, len(members)), make([]error, len(members))
	var all sync.WaitGroup
	for i, g := range members {
		all.Go(func() { links[i], errs[i] = train.MeasureLinks(t.Context(), g) })
	}
	all.Wait()
	for i, l := range links {
		if errs[i] != nil || l != links[0] || l.Latency <= 0 || l.Bandwidth <= 0 {
			t.Errorf("rank %d: %+v, %v", i, l, errs[i])
		}
		if err := members[i].Close(); err != nil {
			t.Error(err)
		}
	}
}

// Copies take time, also between CPU devices, and both ends are as they were.
func TestCopiesAreTimed(t *testing.T) {
	var all []train.PlanDevice
	for i := range 3 {
		all = append(all, train.PlanDevice{Device: torch.CPU(5 + i)})
	}
	one, two := all[0], all[1]
	l, err := train.MeasureCopies(all)
	if err != nil || l.Latency <= 0 || l.Bandwidth <= 0 || one.Memory().Live+two.Memory().Live != 0 {
		t.Errorf("%+v, %v; %d and %d bytes are left", l, err, one.Memory().Live, two.Memory().Live)
	}
	two.SetLimit(1000)
	defer two.SetLimit(0)
	if _, err := train.MeasureCopies(all[:2]); err == nil ||
		!strings.Contains(err.Error(), "cpu:6") {
		t.Errorf("without memory: %v", err)
	}
}
