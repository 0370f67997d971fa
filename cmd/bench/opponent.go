package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"penstock.example/nn"
)

// comparedStages is how many of stageCounts torchgpipe runs too: it has one worker for all stages
// on CPU, which take turns, and more of them gain nothing.
const comparedStages = 2

// otherResult is a workload on torchgpipe.
type otherResult struct {
	Name  string      `json:"name"`
	BLAS  string      `json:"blas"`
	Pipes []otherPipe `json:"pipes,omitempty"` // by number of stages
	Error string      `json:"error,omitempty"`
}

type otherPipe struct {
	Stages     int    `json:"stages"`
	Step       spread `json:"step_ms"`
	Throughput spread `json:"samples_per_s"`
	Faster     spread `json:"ours"` // our throughput to theirs, round by round
}

// otherResult is of the rounds of a process, by number of stages, and of ours.
func (w workload) otherResult(c *child, ms [][]float64, failures []error, ours [][]float64) otherResult {
	o := otherResult{Name: c.name, BLAS: c.hello.BLAS}
	if err := errors.Join(failures...); err != nil {
		o.Error = err.Error()
		return o
	}
	for i, list := range ms {
		o.Pipes = append(o.Pipes, otherPipe{Stages: stageCounts[i], Step: spreadOf(list), Throughput: w.throughput(list), Faster: paired(list, ours[i])})
	}
	return o
}

// opponent is a workload on torchgpipe, cut as a trainer's.
type opponent struct {
	child      *child
	request    trainRequest
	parameters []int64 // by layer
}

// trainRequest is what scripts/torchgpipe/bench.py asks for.
type trainRequest struct {
	workload
	shapes
	Options map[string]any `json:"options"`
	Balance []int          `json:"balance"`
	Seconds float64        `json:"seconds"`
}

func newOpponent(c *child, w workload, t *trainer) (*opponent, error) {
	s, err := w.shapes(w.Batch)
	if err != nil {
		return nil, err
	}
	settings, err := w.settings()
	if err != nil {
		return nil, err
	}
	maps.Copy(settings, w.Theirs)
	o := &opponent{child: c, request: trainRequest{workload: w, shapes: s, Options: settings, Balance: t.pipe.Config().Balance}}
	for _, l := range t.model.Layers() {
		o.parameters = append(o.parameters, nn.Count(l.Layer))
	}
	return o, nil
}

// round fails if the network there does not have the parameters of ours, layer by layer.
func (o *opponent) round(_ context.Context, length time.Duration) (float64, error) {
	o.request.Seconds = length.Seconds()
	var answer struct {
		MS         []float64 `json:"ms"`
		Parameters []int64   `json:"parameters"`
	}
	if err := o.child.ask(o.request, &answer); err != nil {
		return 0, err
	}
	if !slices.Equal(answer.Parameters, o.parameters) {
		return 0, fmt.Errorf("%s: %s has layers of %v parameters, ours %v: scripts/torchgpipe has another network", o.child.name, o.request.Model, answer.Parameters, o.parameters)
	}
	return median(answer.MS), nil
}
