package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// devicesPart compares, on the devices of --devices, one stage on the first of them with plain PyTorch,
// and a pipe over at most two of them with torch.distributed.pipelining.
const devicesPart = "devices"

// lossesApartOnGPU is the most that losses of ours and PyTorch's may differ on a GPU, where
// convolutions round to fewer digits.
const lossesApartOnGPU = 1e-2

// parseDevices reads --devices.
func parseDevices(list string) (out []torch.Device, err error) {
	for name := range strings.SplitSeq(list, ",") {
		d, err := torch.ParseDevice(name)
		if err := cmp.Or(err, d.Usable()); err != nil {
			return nil, fmt.Errorf("--devices %s: %w", list, err)
		}
		if slices.Contains(out, d) {
			return nil, fmt.Errorf("--devices %s: %v is there twice; want devices that differ", list, d)
		}
		out = append(out, d)
	}
	return out, nil
}

// deviceWorkload is a workload with its cuts into one stage and into two: layers of ours, modules of
// scripts/pipelining/models.py.
type deviceWorkload struct {
	exercise
	balance, modules [2][]int
}

// deviceWorkloads are large enough for a GPU; those for CPUs take tenths of a second.
func deviceWorkloads(kind torch.Kind) []deviceWorkload {
	gpt := deviceWorkload{
		exercise: exercise{Model: "gpt", Options: models.Options{Width: 1024, Depth: 8, Heads: 16, Context: 512}, Batch: 32, LR: 1},
		balance:  [2][]int{{114}, {57, 57}}, modules: [2][]int{{10}, {5, 5}},
	}
	resnet := deviceWorkload{
		exercise: exercise{Model: "resnet50", Options: models.Options{Size: 224}, Batch: 128, LR: 0.001},
		balance:  [2][]int{{183}, {81, 102}}, modules: [2][]int{{23}, {11, 12}},
	}
	if kind == torch.KindCPU {
		gpt.Options, gpt.Batch = models.Options{Width: 64, Depth: 8, Heads: 4, Context: 32}, 8
		resnet.Options.Size, resnet.Batch = 64, 8
	}
	list := []deviceWorkload{gpt, resnet}
	for i := range list {
		list[i].Chunks, list[i].Schedule = 4, oneFOneB
	}
	return list
}

// deviceResult is what was measured of a workload.
type deviceResult struct {
	Model   string   `json:"model"`
	Batch   int64    `json:"batch"`
	Chunks  int      `json:"chunks"` // of the pipe
	Devices []string `json:"devices"`
	One     spread   `json:"one_stage_ms"`
	Peak    int64    `json:"one_stage_peak_bytes"`
	Plain   theirs   `json:"plain_pytorch"`
	Piped   spread   `json:"pipe_ms"`
	Balance []int    `json:"balance"`
	Pipes   theirs   `json:"pytorch_pipelining"`
}

// measureDevices lets ours and PyTorch's take turns. What fails there is in the result.
func measureDevices(ctx context.Context, e effort, beside opponents) (out []deviceResult, err error) {
	for _, w := range deviceWorkloads(beside.devices[0].Kind) {
		r, err := w.measure(ctx, e, beside)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.Model, err)
		}
		out = append(out, r)
	}
	return out, nil
}

func (x deviceWorkload) measure(ctx context.Context, e effort, beside opponents) (r deviceResult, err error) {
	used := beside.devices[:min(len(beside.devices), 2)]
	r = deviceResult{Model: x.Model, Batch: x.Batch, Chunks: x.Chunks, Plain: theirs{Name: "plain PyTorch"}, Pipes: theirs{Name: "PyTorch"}}
	for _, d := range used {
		r.Devices = append(r.Devices, d.String())
	}
	if err := x.besidePlain(ctx, e, used[0], &r); err != nil {
		return r, err
	}
	x.Balance = x.balance[len(used)-1]
	r.Balance = x.Balance
	return r, x.besidePipelining(ctx, e, used, beside.chroot, &r)
}

// turns lets ours and theirs take turns, if there are any of theirs, whose failure is not ours.
func turns(ctx context.Context, e effort, ours, other contestant, t *theirs) (spread, error) {
	list := []contestant{ours}
	if t.Error == "" {
		list = append(list, other)
	}
	ms, failures, err := alternate(ctx, e, list)
	if err := cmp.Or(err, failures[0]); err != nil {
		return spread{}, err
	}
	if len(list) > 1 {
		if failures[1] != nil {
			t.Error = failures[1].Error()
		} else {
			t.Step, t.Faster = spreadOf(ms[1]), paired(ms[1], ms[0])
		}
	}
	return spreadOf(ms[0]), nil
}

// besidePlain is the whole batch at once on one device.
func (x deviceWorkload) besidePlain(ctx context.Context, e effort, d torch.Device, r *deviceResult) error {
	w := x.workload()
	w.Chunks = 1
	t, err := w.trainer(ctx, pipe.Config{Balance: x.balance[0], Devices: []torch.Device{d}}, 0)
	if err != nil {
		return err
	}
	defer t.close()
	other := &plainPython{count: nn.Count(t.model), request: plainRequest{Model: x.Model, Threads: 1, Device: d.Kind.String()}}
	if d.Kind != torch.KindCPU {
		other.request.Device = d.String()
	}
	if other.request.shapes, err = w.shapes(w.Batch); err != nil {
		return err
	}
	if other.request.Options, err = w.settings(); err != nil {
		return err
	}
	c, err := startPlain(ctx, cmp.Or(os.Getenv("PYTHON"), "python3"))
	if err != nil {
		r.Plain.Error = err.Error()
	} else {
		defer c.stop()
		other.child = c
		r.Plain.Name, r.Plain.BLAS = r.Plain.Name+" "+c.hello.Torch, c.hello.BLAS
	}
	if r.One, err = turns(ctx, e, t, other, &r.Plain); err != nil {
		return err
	}
	r.Peak = t.peaks()[0]
	return nil
}

// besidePipelining is the pipe, from the same weights, with SGD's updates.
func (x deviceWorkload) besidePipelining(ctx context.Context, e effort, on []torch.Device, chroot string, r *deviceResult) error {
	s, err := schedule.Named(x.Schedule)
	if err != nil {
		return err
	}
	t, err := x.exercise.workload().trainer(ctx, pipe.Config{Balance: x.Balance, Schedule: s.Generate, Devices: on}, 0)
	if err != nil {
		return err
	}
	defer t.close()
	if t.updates, err = optim.SGD(optim.Config{LR: x.LR}); err != nil {
		return err
	}
	other := &athlete{}
	var request *pipeliningRequest
	p, err := startPipelining(ctx, chroot, len(on), on[0].Kind)
	if err == nil {
		defer p.stop()
		r.Pipes.Name, r.Pipes.BLAS = p.name, p.hello.BLAS
		request, err = p.request(ctx, x.exercise, x.modules[len(on)-1])
	}
	var ours []float64
	for range 2 { // before an update, and after it; later ones of batch norms over few rows have little in common
		result, err := t.step(ctx)
		if err != nil {
			return err
		}
		ours = append(ours, result.Loss)
	}
	if err == nil {
		other.child, other.ask = p.child, func(steps int) any {
			a := *request
			a.Steps = steps
			return a
		}
		var out trained
		if out, err = other.run(len(ours)); err == nil && len(out.Losses) == len(ours) {
			r.Pipes.Apart = apart(ours, out.Losses)
		} else if err == nil {
			err = fmt.Errorf("%d losses of %d steps", len(out.Losses), len(ours))
		}
	}
	if err != nil {
		r.Pipes.Error = err.Error()
	}
	r.Piped, err = turns(ctx, e, t, other, &r.Pipes)
	return err
}

func (r *report) writeDevices(t *table) {
	if len(r.Devices) == 0 {
		return
	}
	t.block("on "+strings.Join(r.Devices[0].Devices, ", "), "batch", "ours", "ms", "samples/s", "peak MiB", "theirs", "ms", "ours/theirs", "min-max", "losses apart")
	for _, x := range r.Devices {
		for _, side := range []struct {
			how    string
			ms     spread
			peak   string
			theirs theirs
			apart  string
		}{
			{"one stage", x.One, one(mebibytes([]int64{x.Peak})[0], "%.1f"), x.Plain, ""},
			{fmt.Sprintf("%d stages, 1f1b, %d micro-batches", len(x.Balance), x.Chunks), x.Piped, "", x.Pipes, one(x.Pipes.Apart, "%.1e")},
		} {
			cells := []string{x.Model, fmt.Sprint(x.Batch), side.how, one(side.ms.Median, "%.1f"), one(float64(x.Batch)/side.ms.Median*1e3, "%.1f"), side.peak}
			if side.theirs.Error != "" {
				t.line(append(cells, side.theirs.Name+" failed: "+side.theirs.Error)...)
				continue
			}
			t.line(append(cells, side.theirs.Name, one(side.theirs.Step.Median, "%.1f"), one(side.theirs.Faster.Median, "%.2f"), span("%.2f", side.theirs.Faster), side.apart)...)
		}
	}
}

// devicesTargets are those of throughput and of losses.
func devicesTargets(list []deviceResult) (out []target) {
	for _, r := range list {
		name, most := r.Model+" on "+strings.Join(r.Devices, ", ")+": ", lossesApart
		if strings.HasPrefix(r.Devices[0], torch.KindCUDA.String()) {
			most = lossesApartOnGPU
		}
		if r.Plain.Error == "" {
			out = append(out, atLeast(name+"one stage's throughput to plain PyTorch's", r.Plain.Faster.Median, fasterThanPlain))
		}
		if r.Pipes.Error == "" {
			out = append(out, atLeast(name+"throughput to PyTorch's pipelining", r.Pipes.Faster.Median, fasterThanPlain),
				atMost(fmt.Sprintf("%slosses apart from PyTorch's, %.0e", name, most), r.Pipes.Apart/most, 1))
		}
	}
	return out
}
