package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

const (
	pipeliningScript = "scripts/pipelining/run"
	// pipeliningData is where the script shows its folder to PyTorch in a chroot.
	pipeliningData = "/mnt/data"
)

// pipelining is PyTorch's torch.distributed.pipelining in several processes. It reads weights and
// batches from files.
type pipelining struct {
	*child
	folder string
	shown  string // the folder, as the processes see it
}

// startPipelining starts so many processes in a chroot, or with this machine's python3 if it is "". On
// CUDA devices each has the GPU of its rank.
func startPipelining(ctx context.Context, chroot string, processes int, kind torch.Kind) (*pipelining, error) {
	folder, err := os.MkdirTemp("", "penstock-bench")
	if err != nil {
		return nil, err
	}
	p := &pipelining{child: &child{name: "PyTorch"}, folder: folder, shown: folder}
	if chroot != "" {
		p.shown = pipeliningData
	}
	port, err := freePort()
	if err == nil {
		err = p.start(ctx, pipeliningScript, []string{chroot, folder, port, fmt.Sprint(processes), kind.String()}, os.Environ())
	}
	if err != nil {
		os.RemoveAll(folder)
		return nil, fmt.Errorf("PyTorch's pipelining: %w (docs/benchmarks.md says how PIPELINING names a chroot)", err)
	}
	p.name += " " + p.hello.Torch
	return p, nil
}

func (p *pipelining) stop() {
	p.child.stop()
	os.RemoveAll(p.folder)
}

// pipeliningRequest is what scripts/pipelining/bench.py asks for.
type pipeliningRequest struct {
	Model    string         `json:"model"`
	Options  map[string]any `json:"options"`
	Weights  string         `json:"weights"`
	Batch    string         `json:"batch"`
	Chunks   int            `json:"chunks"`
	Schedule string         `json:"schedule"`
	Balance  []int          `json:"balance"`
	LR       float64        `json:"lr"`
	Steps    int            `json:"steps"`
}

// request is an exercise as PyTorch gets it, from the same weights and with the same batch. Its
// balance counts the modules of scripts/pipelining/models.py.
func (p *pipelining) request(ctx context.Context, x exercise, balance []int) (*pipeliningRequest, error) {
	settings, err := x.workload().settings()
	if err != nil {
		return nil, err
	}
	r := &pipeliningRequest{
		Model: x.Model, Options: settings, Weights: x.Model + ".weights.safetensors", Batch: x.Model + ".batch.safetensors", Chunks: x.Chunks,
		Schedule: x.Schedule, Balance: balance, LR: x.LR, Steps: x.Steps,
	}
	if err := x.export(ctx, filepath.Join(p.folder, r.Weights), filepath.Join(p.folder, r.Batch)); err != nil {
		return nil, err
	}
	r.Weights, r.Batch = filepath.Join(p.shown, r.Weights), filepath.Join(p.shown, r.Batch)
	return r, nil
}

// export writes what the exercise begins with: weights and buffers, input and target.
func (x exercise) export(ctx context.Context, weights, batch string) error {
	w := x.workload()
	t, err := w.unstarted(pipe.Config{Balance: x.Balance}, 0)
	if err != nil {
		return err
	}
	defer t.close()
	return cmp.Or(nn.Save(weights, t.model), safetensors.WriteFile(batch, []safetensors.Tensor{
		torch.FileTensor("input", t.batch.Input[0].Tensor), torch.FileTensor("target", t.batch.Target[0].Tensor),
	}, nil))
}
