package main

import (
	"testing"

	"penstock.example/planner"
)

// A device's stages are listed, also those in which nothing has a backward.
func TestStagesOfADeviceInWords(t *testing.T) {
	p := &planner.Plan{Devices: []planner.DevicePlan{{Name: "cpu:0", Peak: 2 << 20, Limit: 4 << 20}, {Name: "cpu:1", Peak: 1 << 20}}}
	for _, device := range []int{0, 1, 1, 0} {
		p.Stages = append(p.Stages, planner.StagePlan{Device: device, Policy: planner.Optimal, Units: []int{2}, Prologue: 1})
	}
	p.Stages[3].Prologue = 0
	for device, want := range []string{"stages 0, 3: at most 2.0 MiB of 4.0 MiB, nothing recomputed", "stages 1, 2: at most 1.0 MiB, nothing recomputed"} {
		if got := planned(p, device); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
