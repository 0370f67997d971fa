package main

import (
	"context"
	"slices"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/pipe"
	"penstock.example/schedule"
)

// TestSchedules: every schedule trains the workload, over as many devices, and under the limit
// nobody takes more.
func TestSchedules(t *testing.T) {
	torchtest.Check(t)
	w := workload{Model: "resnet20", Options: models.Options{Channels: 1, Size: 8}, Batch: 16, Chunks: 4, Checkpoint: pipe.Never}
	list, err := measureSchedules(context.Background(), brief, []workload{w})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2*len(scheduledDevices) {
		t.Fatalf("%d comparisons", len(list))
	}
	for i, c := range list {
		want := len(schedule.Schedules())
		if i%2 == 1 {
			want = 2
		}
		if c.Devices != scheduledDevices[i/2] || len(c.Variants) != want || c.Variants[0].Name != gpipe {
			t.Errorf("got %+v", c)
		}
		for _, v := range c.Variants {
			if len(v.Peak) != c.Devices || len(v.Safe) != c.Devices || len(v.Idle.Measured) != c.Devices || v.Throughput.Min <= 0 {
				t.Errorf("%d devices, %s: %+v", c.Devices, v.Name, v)
			}
			limit := slices.Max(list[i-i%2].named(oneFOneB).Safe)
			if i%2 == 1 && slices.Max(v.Peak) > limit {
				t.Errorf("%s takes %v bytes with a limit of %d", v.Name, v.Peak, limit)
			}
		}
	}
	if n := len(scheduleTargets(list)); n != len(list) {
		t.Errorf("%d targets for %d comparisons", n, len(list))
	}
}
