package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
)

// answering is a child that gives one answer to whatever it is asked, and the requests that reached
// it.
func answering(t *testing.T, answer string) (*child, <-chan map[string]any) {
	t.Helper()
	asked, ask := io.Pipe()
	answers, write := io.Pipe()
	requests := make(chan map[string]any, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(asked); lines.Scan(); {
			var request map[string]any
			_ = json.Unmarshal(lines.Bytes(), &request) // a request that is none has nothing in it
			requests <- request
			io.WriteString(write, answer+"\n")
		}
	}()
	t.Cleanup(func() {
		ask.Close()
		<-done
	})
	return &child{name: "torchgpipe", in: ask, out: bufio.NewReader(answers)}, requests
}

// The ratio of a round is our throughput to theirs over as many stages: twice their time is twice
// our throughput.
func TestOtherResultPairsRounds(t *testing.T) {
	ours := [][]float64{{10, 10}, {5, 4}, {1, 1}}
	theirs := [][]float64{{20, 30}, {20, 12}}
	got := workload{Batch: 40}.otherResult(&child{name: "torchgpipe"}, theirs, nil, ours)
	want := []otherPipe{
		{Stages: 1, Step: spread{25, 20, 30}, Throughput: spreadOf([]float64{2000, 40e3 / 30}), Faster: spread{2.5, 2, 3}},
		{Stages: 2, Step: spread{16, 12, 20}, Throughput: spreadOf([]float64{2000, 40e3 / 12}), Faster: spread{3.5, 3, 4}},
	}
	if diff := cmp.Diff(want, got.Pipes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// In a whole run, too, the rounds there are beside ours over as many stages.
func TestRoundsAreOfAsManyStages(t *testing.T) {
	torchtest.Check(t)
	c, _ := answering(t, `{"ms": [7], "parameters": `+tinyLayers+`, 2064]}`)
	r, err := tinyText.measure(context.Background(), effort{profile: 1, rounds: 1, round: time.Nanosecond}, []*child{c})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Others) != 1 || len(r.Others[0].Pipes) != comparedStages {
		t.Fatalf("got %+v", r.Others)
	}
	for i, p := range r.Others[0].Pipes {
		if ours := r.Pipes[i]; p.Stages != ours.Stages || p.Step.Median != 7 || p.Faster.Median != 7/ours.Step.Median {
			t.Errorf("%d stages: %+v beside ours of %v ms over %d", p.Stages, p, ours.Step.Median, ours.Stages)
		}
	}
}

// Options for the network there alone reach it, and the table tells the rows apart.
func TestOptionsOfTheirs(t *testing.T) {
	torchtest.Check(t)
	c, requests := answering(t, `{"error": "enough"}`)
	w := tinySkips
	w.Theirs, w.Variant = sameNorms.Theirs, sameNorms.Variant
	trained, err := w.trainer(context.Background(), pipe.Config{Balance: []int{1, len(mustBuild(t, w).Layers()) - 1}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer trained.close()
	o, err := newOpponent(c, w, trained)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.round(context.Background(), time.Second); err == nil || err.Error() != "enough" {
		t.Fatal(err)
	}
	if options := (<-requests)["options"].(map[string]any); options["norm"] != "group_norm" || options["B"] != 1.0 {
		t.Errorf("the options are %v", options)
	}
	if w.name() != "unet, group_norm in both" || tinySkips.name() != "unet" {
		t.Errorf("%q and %q", w.name(), tinySkips.name())
	}
}

func mustBuild(t *testing.T, w workload) *nn.Sequential {
	t.Helper()
	s, err := w.build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// tinyLayers are the parameters of tinyText by layer, but for the last layer's: an embedding of 256
// tokens and 4 positions and two blocks. Each layer counts what it uses; the last is a norm and the
// embedding's weight.
const (
	tinyBlock  = "0, 16, 216, 0, 0, 0, 72, 0, 0, 16, 288, 0, 264, 0"
	tinyLayers = "[2080, " + tinyBlock + ", " + tinyBlock
)

func TestOpponent(t *testing.T) {
	torchtest.Check(t)
	for _, row := range []struct{ reason, answer, want string }{
		{"the same network", `{"ms": [3, 1, 2], "parameters": ` + tinyLayers + `, 2064]}`, ""},
		{"another network", `{"ms": [1], "parameters": ` + tinyLayers + `, 16]}`, "another network"},
		{"a failure there", `{"error": "RuntimeError: no"}`, "RuntimeError: no"},
	} {
		c, requests := answering(t, row.answer)
		trained, err := tinyText.trainer(context.Background(), pipe.Config{Balance: []int{1, 29}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer trained.close()
		o, err := newOpponent(c, tinyText, trained)
		if err != nil {
			t.Fatal(err)
		}
		ms, err := o.round(context.Background(), 500*time.Millisecond)
		switch {
		case row.want != "":
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%s: got %v, want %s", row.reason, err, row.want)
			}
		case err != nil || ms != 2:
			t.Errorf("%s: got %v, %v, want the median", row.reason, ms, err)
		}
		got, _ := json.Marshal(<-requests)
		for _, want := range []string{`"model":"gpt"`, `"balance":[1,29]`, `"chunks":2`, `"checkpoint":"never"`, `"context":4`, `"input":[2,4]`, `"target":[2,256,4]`, `"tokens":256`, `"seconds":0.5`} {
			if !strings.Contains(string(got), want) {
				t.Errorf("%s: no %s in the request %s", row.reason, want, got)
			}
		}
	}
}
