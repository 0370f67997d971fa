package main

import (
	"context"
	"os/exec"
	"testing"

	"penstock.example/internal/torchtest"
)

// A plan is found for one and for two devices, and is run: predicted, measured and simulated times are there.
func TestMeasurePlans(t *testing.T) {
	torchtest.Check(t)
	list, err := measurePlans(context.Background(), brief, newCosts(brief), []workload{tinyText}, 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 {
		t.Fatalf("%+v", list)
	}
	for i, p := range list {
		layers, err := tinyText.layers()
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, n := range p.Balance {
			sum += n
		}
		if p.Devices != i+1 || len(p.Balance)%p.Devices != 0 || sum != layers || p.Predicted <= 0 || p.Measured.Median <= 0 || p.Simulated <= 0 || p.Simulated > 1.5*p.Mean {
			t.Errorf("%+v", p)
		}
	}
	if got := len(plansTargets(list)); got != 4 {
		t.Errorf("%d targets", got)
	}
}

// What is measured of a workload for several plans is measured once.
func TestCostsAreMeasuredOnce(t *testing.T) {
	torchtest.Check(t)
	k := newCosts(brief)
	for range 2 {
		if _, err := k.plan(context.Background(), tinyText, 1, 2); err != nil {
			t.Fatal(err)
		}
	}
	if len(k.known) != 2 { // 2 rows and 1, on 2 threads
		t.Errorf("%d measurements", len(k.known))
	}
	before := k.known[costsOf{"gpt", 1, 2}].Layers[0].Forward
	if _, err := k.plan(context.Background(), tinyText, 0, 2); err != nil {
		t.Fatal(err)
	}
	if len(k.known) != 4 || k.known[costsOf{"gpt", 1, 2}].Layers[0].Forward != before {
		t.Errorf("%d measurements, or one was taken again", len(k.known))
	}
}

// The ratio of a round is our throughput to theirs: twice their time is twice our throughput, and so it is
// with processor time.
func TestBesidePlain(t *testing.T) {
	torchtest.Check(t)
	c, requests := answering(t, `{"ms": [3600000], "cpu_ms": 7200000, "parameters": 3840}`)
	w := tinyText
	w.Chunks = 1
	r, err := w.besidePlain(context.Background(), brief, newCosts(brief), c, 2)
	if err != nil {
		t.Fatal(err)
	}
	// The best plan may be the one stage.
	if n := len(r.Ours); n < 1 || n > 2 || r.Ours[0].How != "one stage, 2 threads" || r.Step.Median != 3600000 {
		t.Errorf("%+v", r)
	}
	for _, o := range r.Ours {
		if o.Faster.Median*o.Step.Median < 1800000 || o.Faster.Median < 2 || o.Cheaper.Median < 2 {
			t.Errorf("%+v", o)
		}
	}
	asked := <-requests
	if asked["model"] != "gpt" || asked["threads"] != 2.0 || asked["options"] == nil {
		t.Errorf("asked for %v", asked)
	}
	if list := plainTargets([]plainResult{r}); len(list) != 1 || !list[0].Met {
		t.Errorf("%+v", list)
	}
}

// The networks in plain PyTorch are ours, as far as their parameters tell.
func TestPlainNetworks(t *testing.T) {
	torchtest.Check(t)
	if exec.Command(python, "-c", "import torch").Run() != nil {
		t.Skip("there is no PyTorch of Debian's; scripts/setup python installs it")
	}
	t.Chdir("../..")
	small := workload{Model: "resnet20", Batch: 2, Chunks: 1, Checkpoint: "never"}
	small.Options.Size, small.Options.Channels, small.Options.Width = 8, 1, 4
	w := tinyText
	w.Chunks = 1
	list, err := measurePlain(context.Background(), brief, newCosts(brief), []workload{w, small}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[0].Theirs == "" || list[1].Step.Median <= 0 {
		t.Errorf("%+v", list)
	}
}
