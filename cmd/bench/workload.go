package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"penstock/balance"
	"penstock/models"
	"penstock/nn"
	"penstock/pipe"
	"penstock/profile"
	"penstock/schedule"
	"penstock/torch"
)

// workload is a model and how it is trained. Its loss is the mean squared error to a random target; gradients are dropped after each step and no optimizer runs.
type workload struct {
	Model      string `json:"model"`
	About      string `json:"about"`
	Batch      int64  `json:"batch"`
	Chunks     int    `json:"chunks"`
	Checkpoint string `json:"checkpoint"`
}

const (
	mlpDepth  = 16
	mlpWidth  = 1024
	gptTokens = 128
	gptBytes  = 256
)

var workloads = []workload{
	{"mlp", "16 x (Linear 1024, ReLU)", 256, 1, "never"},
	{"mlp", "16 x (Linear 1024, ReLU)", 256, 4, "never"},
	{"mlp", "16 x (Linear 1024, ReLU)", 256, 8, "never"},
	{"resnet20", "images of 1 x 28 x 28", 64, 8, "except_last"},
	{"gpt", "4 blocks, 4 heads, 128 wide, 128 tokens", 16, 8, "never"},
}

// workloadResult is what was measured of a workload.
type workloadResult struct {
	workload
	Balance []int         `json:"balance"` // of the two stages
	Bound   float64       `json:"bubble_bound"`
	Stages  [2]stages     `json:"stages"` // one, and two
	Ratio   spread        `json:"ratio"`  // of a step over two stages to one over one, round by round
	Others  []otherResult `json:"torchgpipe,omitempty"`
}

// stages is what was measured with a number of stages.
type stages struct {
	Step spread    `json:"step_ms"`    // medians of rounds
	Idle []float64 `json:"idle"`       // share of one recorded step, by stage
	Peak []int64   `json:"peak_bytes"` // by device: parameters, gradients, batch, activations, workspaces
	ms   []float64 // by round
}

// otherResult is the same workload on torchgpipe.
type otherResult struct {
	Name  string    `json:"name"`
	BLAS  string    `json:"blas"`
	Step  [2]spread `json:"step_ms"` // one stage, two stages
	Ours  [2]spread `json:"ours"`    // our step to theirs, round by round
	Error string    `json:"error,omitempty"`
}

func (w workload) build() (*nn.Sequential, error) {
	switch w.Model {
	case "mlp":
		s := nn.NewSequential()
		for i := range mlpDepth {
			s.Add("fc"+strconv.Itoa(i), nn.NewLinear(mlpWidth, mlpWidth)).Add("relu"+strconv.Itoa(i), nn.NewReLU())
		}
		return s, nil
	case "resnet20":
		return models.New(w.Model, models.Options{Channels: 1, Size: 28})
	default:
		return models.New(w.Model, models.Options{})
	}
}

// input and target are those of some rows.
func (w workload) input(c *torch.Ctx, rows int64) *torch.Tensor {
	switch w.Model {
	case "mlp":
		return c.Normal_(c.Empty(torch.Float32, rows, mlpWidth), 0, 1)
	case "resnet20":
		return c.Normal_(c.Empty(torch.Float32, rows, 1, 28, 28), 0, 1)
	default:
		tokens := make([]int64, rows*gptTokens)
		r := rand.New(rand.NewPCG(7, 0))
		for i := range tokens {
			tokens[i] = r.Int64N(gptBytes)
		}
		return torch.From(c, tokens, rows, gptTokens)
	}
}

func (w workload) target(c *torch.Ctx) *torch.Tensor {
	shape := map[string][]int64{"mlp": {w.Batch, mlpWidth}, "resnet20": {w.Batch, 10}, "gpt": {w.Batch, gptBytes, gptTokens}}[w.Model]
	return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1)
}

// partition is even where all layers are, and by time otherwise.
func (w workload) partition(ctx context.Context) ([]int, error) {
	if w.Model == "mlp" {
		return []int{mlpDepth, mlpDepth}, nil
	}
	model, err := w.build()
	if err != nil {
		return nil, err
	}
	c := torch.NewCtx(torch.Options{Device: torch.CPU(0), Threads: 1})
	defer c.Close()
	p, err := profile.Measure(ctx, model, profile.Config{Repeats: 9, Peer: torch.CPU(1)}, w.input(c, w.Batch/int64(w.Chunks)))
	if err != nil {
		return nil, err
	}
	policy, err := pipe.ParseCheckpoint(w.Checkpoint)
	if err != nil {
		return nil, err
	}
	counts, _, err := balance.ByTime(p.Layers, 2, balance.TimeConfig{Recomputed: []float64{policy.Recomputed(w.Chunks)}, SecondsPerByte: p.SecondsPerByte, Skips: p.Skips, Ties: p.Ties})
	return counts, err
}

// measure alternates: a round is some steps over one stage, some over two, and the same on torchgpipe.
func (w workload) measure(ctx context.Context, e effort, others []*child) (workloadResult, error) {
	result := workloadResult{workload: w, Bound: float64(w.Chunks+1) / float64(2*w.Chunks)}
	var err error
	if result.Balance, err = w.partition(ctx); err != nil {
		return result, err
	}
	// The two have devices of their own, so that each account is of one of them alone.
	one, err := w.trainer([]int{result.Balance[0] + result.Balance[1]}, []torch.Device{torch.CPU(0)})
	if err != nil {
		return result, err
	}
	defer one.close()
	two, err := w.trainer(result.Balance, []torch.Device{torch.CPU(1), torch.CPU(2)})
	if err != nil {
		return result, err
	}
	defer two.close()
	trainers := []*trainer{one, two}
	for i, t := range trainers {
		if err := t.inspect(ctx, &result.Stages[i]); err != nil {
			return result, err
		}
	}
	theirs := make([][2][]float64, len(others))
	failures := make([]error, len(others))
	for range e.rounds {
		for i, t := range trainers {
			ms, err := t.round(ctx, e.round)
			if err != nil {
				return result, err
			}
			result.Stages[i].ms = append(result.Stages[i].ms, ms)
		}
		for k, c := range others {
			for i, t := range trainers {
				if failures[k] != nil {
					continue
				}
				var ms float64
				ms, failures[k] = c.round(w, t.balance, e.round)
				theirs[k][i] = append(theirs[k][i], ms)
			}
		}
		if err := ctx.Err(); err != nil {
			return result, err
		}
	}
	for i := range result.Stages {
		result.Stages[i].Step = spreadOf(result.Stages[i].ms)
	}
	result.Ratio = paired(result.Stages[1].ms, result.Stages[0].ms)
	for k, c := range others {
		o := otherResult{Name: c.name, BLAS: c.hello.BLAS}
		if failures[k] != nil {
			o.Error = failures[k].Error()
		} else {
			for i := range o.Step {
				o.Step[i], o.Ours[i] = spreadOf(theirs[k][i]), paired(result.Stages[i].ms, theirs[k][i])
			}
		}
		result.Others = append(result.Others, o)
	}
	return result, nil
}

// trainer is a workload in a pipe.
type trainer struct {
	model   *nn.Sequential
	pipe    *pipe.Pipe
	balance []int
	batch   pipe.Batch
	loss    *nn.MSELoss
	data    []*torch.Ctx // own the batch, on the first and the last device
}

func (w workload) trainer(balance []int, devices []torch.Device) (*trainer, error) {
	policy, err := pipe.ParseCheckpoint(w.Checkpoint)
	if err != nil {
		return nil, err
	}
	model, err := w.build()
	if err != nil {
		return nil, err
	}
	p, err := pipe.New(model, pipe.Config{Balance: balance, Devices: devices, Chunks: w.Chunks, Checkpoint: policy})
	if err != nil {
		return nil, err
	}
	t := &trainer{model: model, pipe: p, balance: balance, loss: nn.NewMSELoss(nn.MSEConfig{})}
	for _, d := range []torch.Device{devices[0], devices[len(devices)-1]} {
		t.data = append(t.data, torch.NewCtx(torch.Options{Device: d, Seed: 7}))
	}
	t.batch = pipe.Batch{Input: w.input(t.data[0], w.Batch), Target: w.target(t.data[1])}
	return t, nil
}

func (t *trainer) close() {
	for _, c := range t.data {
		c.Close()
	}
	t.pipe.Close()
	nn.Free(t.model)
	for _, d := range t.pipe.Devices() {
		d.Trim()
	}
}

func (t *trainer) step(ctx context.Context) (*schedule.Timeline, error) {
	r, err := t.pipe.Step(ctx, t.batch, t.loss)
	nn.ZeroGrads(t.model)
	t.batch.Step++
	return r.Timeline, err
}

// inspect warms up, then records a step and the memory of it.
func (t *trainer) inspect(ctx context.Context, s *stages) error {
	for range 2 {
		if _, err := t.step(ctx); err != nil {
			return err
		}
	}
	for _, d := range t.pipe.Devices() {
		d.ResetPeak()
	}
	t.pipe.SetRecord(true)
	timeline, err := t.step(ctx)
	t.pipe.SetRecord(false)
	if err != nil {
		return err
	}
	if timeline == nil {
		return fmt.Errorf("the step was not recorded")
	}
	for i, d := range t.pipe.Devices() {
		s.Idle, s.Peak = append(s.Idle, timeline.Idle(i)), append(s.Peak, d.Memory().Peak)
	}
	return nil
}

// round is the median of the steps, in milliseconds, that fit into some time.
func (t *trainer) round(ctx context.Context, length time.Duration) (float64, error) {
	var ms []float64
	for begin := time.Now(); len(ms) == 0 || time.Since(begin) < length; {
		start := time.Now()
		if _, err := t.step(ctx); err != nil {
			return 0, err
		}
		ms = append(ms, time.Since(start).Seconds()*1e3)
	}
	return median(ms), nil
}
