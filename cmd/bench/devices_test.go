package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/torch"
)

func TestParseDevices(t *testing.T) {
	for _, row := range []struct{ list, want, wrong string }{
		{"cpu:0,cpu:3", "[cpu:0 cpu:3]", ""},
		{"cpu:0,gpu", "", `unknown device "gpu"`},
		{"cpu:1,cpu:1", "", "cpu:1 is there twice"},
		{"cuda:99", "", "cannot use cuda:99"},
	} {
		got, err := parseDevices(row.list)
		if row.wrong != "" {
			if err == nil || !strings.HasPrefix(err.Error(), "--devices "+row.list+": ") || !strings.Contains(err.Error(), row.wrong) {
				t.Errorf("%s: %v, want %q", row.list, err, row.wrong)
			}
			continue
		}
		if err != nil || !slices.Equal(got, []torch.Device{torch.CPU(0), torch.CPU(3)}) {
			t.Errorf("%s: %v, %v", row.list, got, err)
		}
	}
}

// The cuts of the workloads are of all of their layers.
func TestDeviceWorkloads(t *testing.T) {
	for _, kind := range []torch.Kind{torch.KindCPU, torch.KindCUDA} {
		for _, x := range deviceWorkloads(kind) {
			layers, err := x.workload().layers()
			if err != nil {
				t.Fatal(err)
			}
			for i, balance := range x.balance {
				sum, modules := 0, 0
				for k, n := range balance {
					sum, modules = sum+n, modules+x.modules[i][k]
				}
				if sum != layers || len(balance) != i+1 || len(x.modules[i]) != i+1 || modules == 0 {
					t.Errorf("%s: balance %v and modules %v of %d layers", x.Model, balance, x.modules[i], layers)
				}
			}
		}
	}
}

// One stage and a pipe are measured where there is no PyTorch, and the report says so.
func TestDevicesWithoutPyTorch(t *testing.T) {
	torchtest.Check(t)
	t.Setenv("PYTHON", "false")
	t.Chdir("../..")
	x := deviceWorkloads(torch.KindCPU)[0]
	x.Options, x.Batch = models.Options{Width: 8, Depth: 8, Heads: 2, Context: 4}, 4
	r, err := x.measure(t.Context(), brief, opponents{devices: []torch.Device{torch.CPU(0), torch.CPU(1), torch.CPU(2)}})
	if err != nil {
		t.Fatal(err)
	}
	if !(r.One.Min > 0 && r.Piped.Min > 0 && r.Peak > 0) || !slices.Equal(r.Balance, []int{57, 57}) || !slices.Equal(r.Devices, []string{"cpu:0", "cpu:1"}) {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(r.Plain.Error, "the process ended") || !strings.Contains(r.Pipes.Error, "the process ended") {
		t.Errorf("plain: %q, pipelining: %q", r.Plain.Error, r.Pipes.Error)
	}
	if list := devicesTargets([]deviceResult{r}); len(list) != 0 {
		t.Errorf("targets %v", list)
	}
	var b strings.Builder
	w := &table{Writer: tabwriter.NewWriter(&b, 0, 0, 1, ' ', 0)}
	(&report{Devices: []deviceResult{r}}).writeDevices(w)
	w.Flush()
	if text := b.String(); !strings.Contains(text, "on cpu:0, cpu:1") || strings.Count(text, "failed: ") != 2 {
		t.Errorf("got\n%s", text)
	}
}

// PyTorch's networks are ours: from the same weights their losses are the same, before and after an update.
func TestDevicesBesidePyTorch(t *testing.T) {
	chroot := os.Getenv("PIPELINING")
	if chroot == "" {
		t.Skip("PIPELINING names no chroot with PyTorch")
	}
	torchtest.Check(t)
	t.Chdir("../..")
	t.Setenv("PYTHON", python)
	for _, devices := range [][]torch.Device{{torch.CPU(0)}, {torch.CPU(0), torch.CPU(1)}} {
		list, err := measureDevices(t.Context(), brief, opponents{chroot: chroot, devices: devices})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			if r.Plain.Error != "" || r.Pipes.Error != "" || r.Pipes.Apart > lossesApart {
				t.Errorf("%+v", r)
			}
		}
	}
}
