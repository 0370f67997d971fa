package command

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	noerr "penstock.example/internal/must"
	"penstock.example/plan"
	"penstock.example/torch"
	"penstock.example/train"
)

// setHardware has CPU devices be made of something else, by index.
func setHardware(t *testing.T, list ...torch.Hardware) {
	t.Helper()
	was := hardware
	hardware = func(d torch.Device) (torch.Hardware, error) { return list[d.Index], nil }
	t.Cleanup(func() { hardware = was })
}

// planMLP is a plan of mlp.
var planMLP = []string{"plan", "--model", "mlp", "--batch", "64", "--threads", "1", "--repeats", "1",
	"--format", "json"}

// A plan for CPU devices by name is that for as many, on these in their order; and so is the run by it.
func TestPlanForNamedDevices(t *testing.T) {
	within := with(planMLP, "--memory-limit", "3MiB", "--devices")
	file := filepath.Join(t.TempDir(), "plan.json")
	planned := func(args ...string) (line planJSON) {
		setClock(t, steady)
		decode(t, must(t, args...).stdout, &line)
		return line
	}
	want := planned(with(within, "2")...)
	for i := range 10 {
		torch.CPU(i).ResetPeak()
	}
	line := planned(with(within, "cpu:7, cpu:4", "--out", file)...)
	for i := range 10 {
		if used := torch.CPU(i).Memory().Peak > 0; used != (i == 7 || i == 4) {
			t.Errorf("a plan for cpu:7 and cpu:4 has used cpu:%d: %v", i, used)
		}
	}
	if !slices.Equal(line.Devices, []string{"cpu:7", "cpu:4"}) {
		t.Errorf("the plan has %q", line.Devices)
	}
	line.Devices = want.Devices
	delete(line.Train, "devices")
	if d := cmp.Diff(want, line); d != "" {
		t.Errorf("named devices are planned otherwise than --devices 2 (-2 +named):\n%s", d)
	}
	run := []string{"train", "--plan", file, "--data", "synthetic", "--steps", "2", "--format", "json"}
	steps, done := lines(t, must(t, run...).stdout)
	for i, peak := range steps[1].PeakBytes {
		if peak > line.Peak[i] {
			t.Errorf("device %d takes %d bytes, and the plan says %d", i, peak, line.Peak[i])
		}
	}
	_, same := lines(t, must(t, with(run, "--devices", "cpu:7,cpu:4", "--memory-limit", "3MiB")...).stdout)
	if same.ParamsSHA256 != done.ParamsSHA256 {
		t.Error("with the plan's own --devices other weights")
	}
}

// A run that plans itself does so for the devices that are named, and again when others are.
func TestRunsPlanForNamedDevices(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	flags := []string{"train", "--model", "mlp", "--data", "synthetic", "--batch", "64", "--chunks", "4",
		"--threads", "1", "--format", "json", "--steps"}
	run := func(steps string, more ...string) ran {
		return must(t, with(with(flags, steps, "--plan", "auto", "--memory-limit", "3MiB", "--out", out),
			more...)...)
	}
	run("1", "--devices", "cpu:1,cpu:0")
	says(t, run("2", "--devices", "cpu:1,cpu:0", "--resume").stderr, "--plan auto: as before, ")
	last := run("3", "--devices", "cpu:2,cpu:1,cpu:0", "--resume")
	says(t, last.stderr, "--plan auto: planned again, ")
	says(t, last.stdout, sha(t, with(flags, "3")...)) // the weights without a plan
}

// Devices that are made of different things, as GPUs may be, are measured each, and each holds no more
// than it has: in the plan, and in the run by it.
func TestPlanForUnequalDevices(t *testing.T) {
	const has = 8 << 20
	setHardware(t, torch.Hardware{Model: "slow", Free: has}, torch.Hardware{Model: "fast", Free: has + 1000})
	plan := with(planMLP, "--schedule", "gpipe", "--chunks", "4", "--devices")
	reads, each := 0, 0 // of the clock: in all, and while a device is measured
	setClock(t, func() time.Duration {
		if reads++; each > 0 && reads > each { // on the second device
			return time.Millisecond
		}
		return 3 * time.Millisecond
	})
	must(t, with(plan, "cpu:0", "--memory-limit", "64MiB")...)
	each, reads = reads, 0
	file := filepath.Join(t.TempDir(), "plan.json")
	var line planJSON
	decode(t, must(t, with(plan, "cpu:0,cpu:1", "--out", file)...).stdout, &line)
	if reads != 2*each {
		t.Errorf("the clock is read %d times for two kinds, and %d for one", reads, each)
	}
	at := slices.Index(line.Devices, "cpu:1")
	if len(line.Devices) != 2 || at < 0 || line.Balance[at] <= line.Balance[1-at] {
		t.Errorf("%v layers on %v, want more on cpu:1, which is faster", line.Balance, line.Devices)
	}
	if line.Train["memory-limit"] != "" || line.Bytes[at] != has+1000 || line.Bytes[1-at] != has {
		t.Errorf("limits of %v bytes on %v, and of %s on all", line.Bytes, line.Devices,
			line.Train["memory-limit"])
	}
	run := []string{"train", "--plan", file, "--data", "synthetic", "--steps", "2", "--format", "json"}
	steps, _ := lines(t, must(t, run...).stdout)
	for i, peak := range steps[1].PeakBytes {
		if peak > line.Peak[i] || line.Peak[i] > line.Bytes[i] {
			t.Errorf("%s takes %d bytes, and the plan says %d", line.Devices[i], peak, line.Peak[i])
		}
	}
	refuses(t, with(run, "--memory-limit", "3MiB"), exitUsage,
		"--memory-limit 3145728: the plan of --plan "+file+" has none")

	line.Page, line.Bytes = nil, []int64{100, 100}
	text := noerr.Get(json.Marshal(line))(t)
	little := textFile(t, "little.json", string(text))
	refuses(t, []string{"train", "--plan", little, "--data", "synthetic", "--steps", "1"}, exitUsage,
		"stage 0 on cpu:0 needs", "and may have 100 bytes")

	setHardware(t, torch.Hardware{Free: 1900 << 10}, torch.Hardware{Free: 1900 << 10})
	refuses(t, with(planMLP, "--devices", "cpu:0,cpu:1"), exitUsage, "and may have 1945600 bytes")
}

// A plan for GPUs has the settings of their kernels, so that train refuses others.
func TestPlanForGPUsKeepsTheirKernels(t *testing.T) {
	p := foundPlan{ModelPlan: &train.ModelPlan{Units: []int{1}}, flags: &planFlags{
		devices: []torch.Device{torch.CUDA(0)}, numerics: gpuFlags{tf32: true}}}
	p.Best = &plan.Candidate{}
	if line := p.line(); line.Train["tf32"] != "true" || line.Train["deterministic"] != "false" {
		t.Errorf("%v", line.Train)
	}
}
