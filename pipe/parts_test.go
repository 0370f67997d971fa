package pipe_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Every schedule with backwards in two parts gives the bits of the plain loop: with dropout, batch
// norm, skips, tied parameters on both sides of a cut, and layers that recompute by themselves.
func TestBackwardsInTwoPartsAreTransparent(t *testing.T) {
	torchtest.Check(t)
	kinds := []int{0, 1, 21, 18, 3, 21, 23, 7, 11, 22, 20, 17, 21}
	q := problem{
		model: func() *nn.Sequential { return randomModel(kinds, nn.Checkpointed) }, rows: 9, steps: 2,
		loss: nn.CrossEntropy(), input: normal(9, 2, 6, 6), target: classes(9, 3), deferred: true,
	}
	plain := q
	plain.model = func() *nn.Sequential { return randomModel(kinds, unwrapped) }
	want := plain.plain(5, 7)
	layers := len(q.model().Layers())
	for _, s := range schedule.Schedules() {
		if !s.Split {
			continue
		}
		const count = 3
		virtual := max(s.Virtual, 1)
		worker, err := s.Workers(count, virtual)
		if err != nil {
			t.Fatal(err)
		}
		for _, policy := range policies {
			cfg := pipe.Config{Chunks: 5, Seed: 7, DeferredBatchNorm: true, Checkpoint: policy, Schedule: s.Generate}
			for i, w := range worker {
				cfg.Balance = append(cfg.Balance, (i+1)*layers/len(worker)-i*layers/len(worker))
				cfg.Devices = append(cfg.Devices, torch.CPU(w)) // a V needs as many
			}
			if d := want.differs(q.piped(t, cfg)); d != "" {
				t.Errorf("%s, %v: %s differs from the plain loop", s.Name, policy, d)
			}
		}
	}
}

// A failure in either part has its coordinates, and the run is undone: nothing is held, and weights
// have the gradients that they had.
func TestFailureInEitherPartOfABackward(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(4, 64), nn.NewLinear(64, 64), nn.NewTanh(),
		nn.NewSequential(nn.NewLinear(64, 2), nn.NewTanh()))
	p := started(t, model, pipe.Config{Balance: []int{1, 4}, Chunks: 2, Checkpoint: pipe.Never, Schedule: lateWeights})
	c := torch.NewCtx(torch.Options{Device: torch.CPU(2)})
	defer c.Close()
	b := pipe.Batch{Input: pipe.Rows(normal(8, 4)(c, 0)), Target: pipe.Rows(normal(8, 2)(c, 1))}
	device := torch.CPU(1)
	live := liveBytes(3)
	device.ResetPeak()
	if _, err := p.Step(context.Background(), b, squares{}); err != nil {
		t.Fatal(err)
	}
	peak := device.Memory().Peak
	nn.ZeroGrads(model)
	seen := map[schedule.Kind][]string{}
	for limit := device.Memory().Live + 1; limit < peak; limit += 128 {
		device.SetLimit(limit)
		_, err := p.Step(context.Background(), b, squares{})
		device.SetLimit(0)
		if err == nil { // no copies of the first step's are left to be made
			nn.ZeroGrads(model)
			break
		}
		var e *pipe.Error
		if !errors.As(err, &e) || !errors.Is(err, torch.ErrOutOfMemory) {
			t.Fatalf("limit %d of %d: %v", limit, peak, err)
		}
		for _, q := range nn.Params(model) {
			if q.Tensor().HasGrad() {
				t.Errorf("limit %d, %v: %s kept a gradient", limit, err, q.Name)
			}
		}
		if got := liveBytes(3); got != live {
			t.Fatalf("limit %d, %v: live bytes %v, before %v", limit, err, got, live)
		}
		if e.Stage == 1 && !slices.Contains(seen[e.Direction], e.Layer) {
			seen[e.Direction] = append(seen[e.Direction], e.Layer)
		}
		if e.Direction == schedule.BackwardWeight && !strings.Contains(err.Error(), "backward of the weights: ") {
			t.Errorf("got %v", err)
		}
	}
	for kind, layer := range map[schedule.Kind]string{schedule.BackwardInput: "2", schedule.BackwardWeight: "1"} {
		if !slices.Contains(seen[kind], layer) {
			t.Errorf("%v never failed in layer %q; seen %v", kind, layer, seen)
		}
	}
}

// lateWeights is GPipe with the gradients of weights after everything else.
func lateWeights(c schedule.Config) (*schedule.Program, error) {
	p, err := schedule.GPipe(c)
	if err != nil {
		return nil, err
	}
	for w := range p.Workers {
		for i := range p.Workers[w] {
			if a := &p.Workers[w][i]; a.Kind == schedule.Backward {
				a.Kind = schedule.BackwardInput
				weights := *a
				weights.Kind = schedule.BackwardWeight
				p.Workers[w] = append(p.Workers[w], weights)
			}
		}
	}
	return p, nil
}

// Between the two parts a stage holds, of each linear layer, the input and the gradient of the
// output, and the account has it.
func TestWhatIsHeldForTheWeights(t *testing.T) {
	torchtest.Check(t)
	const width, rows, chunks = 32, 64, 4
	const one = 4 * width * rows / chunks
	device := torch.CPU(1)
	model := nn.NewSequential(nn.NewLinear(width, width), nn.NewGELU(), nn.NewLinear(width, width), nn.NewGELU(),
		nn.NewLinear(width, width))
	p := started(t, model, pipe.Config{Balance: []int{1, 4}, Chunks: chunks, Checkpoint: pipe.Never, Schedule: lateWeights})
	c := torch.NewCtx(torch.Options{Device: device})
	defer c.Close()
	b := pipe.Batch{Input: pipe.Rows(normal(rows, width)(c, 0)), Target: pipe.Rows(normal(rows, width)(c, 1))}
	before := device.Memory().Live
	gradients := int64(2 * 4 * (width*width + width))
	program, err := p.Program(chunks)
	if err != nil {
		t.Fatal(err)
	}
	graph := program.Graph()
	var held []int64
	fetched := make(chan struct{}) // closed when the first stage has taken all gradients
	p.Hold(func(worker, action int) {
		switch {
		case action == graph.First[worker+1] || graph.Actions[action].Kind != schedule.BackwardWeight:
		case worker == 0 && graph.Actions[action].MicroBatch == 0:
			close(fetched)
		case worker == 1:
			<-fetched
			held = append(held, device.Memory().Live-before)
		}
	})
	if _, err := p.Step(context.Background(), b, squares{}); err != nil {
		t.Fatal(err)
	}
	for i, got := range held {
		want := int64(chunks-i)*4*one + 4 // x and dy of two linears; the gradient of the loss
		if i > 0 {
			want += gradients
		}
		if got != want {
			t.Errorf("%d bytes are held for the weights when %d micro-batches are left, want %d", got, chunks-i, want)
		}
	}
	if len(held) != chunks {
		t.Errorf("%d micro-batches had weights", len(held))
	}
	nn.ZeroGrads(model)
}
