package schedule

import (
	"fmt"
	"slices"
)

// Loop returns the worker of each stage where stages go round: stage s is on worker s mod devices.
// It fails if a device would have no stage.
func Loop(stages, devices int) ([]int, error) {
	return place(stages, devices, func(s int) int { return s % devices })
}

// V returns the worker of each stage where stages go to and fro: with two stages for each device,
// the first device has the first and the last stage, and the last device the two in the middle. It
// fails if a device would have no stage.
func V(stages, devices int) ([]int, error) {
	return place(stages, devices, func(s int) int {
		at := s % (2 * devices)
		return min(at, 2*devices-1-at)
	})
}

func place(stages, devices int, worker func(stage int) int) ([]int, error) {
	if devices < 1 || stages < devices {
		return nil, fmt.Errorf("schedule: %d stages on %d devices, want at least one device and a stage for each", stages, devices)
	}
	if err := checkSize(stages, 0, 1); err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	out := make([]int, stages)
	for s := range out {
		out[s] = worker(s)
	}
	return out, nil
}

// Placement returns the worker of each stage, -1 for a stage that has no action. The program must
// pass [Check], or have no action of a stage that it does not have.
func (p *Program) Placement() []int {
	out := make([]int, p.Stages)
	for s := range out {
		out[s] = -1
	}
	for w, actions := range p.Workers {
		for _, a := range actions {
			out[a.Stage] = w
		}
	}
	return out
}

// one divides stages into one chunk for each worker. All stages of a worker must be consecutive.
func one(placement []int) ([]chunk, error) {
	chunks := blocks(placement)
	if len(chunks) > slices.Max(placement)+1 {
		return nil, fmt.Errorf("stages are on the workers %v, want consecutive stages on a worker", placement)
	}
	return chunks, nil
}

// blocks divides stages into chunks of consecutive stages of a worker.
func blocks(placement []int) []chunk {
	var chunks []chunk
	for s, w := range placement {
		if s > 0 && placement[s-1] == w {
			chunks[len(chunks)-1].to++
		} else {
			chunks = append(chunks, chunk{w, s, s + 1})
		}
	}
	return chunks
}

// looped divides stages into chunks that go round: chunk c is on the worker of chunk c mod workers.
func looped(placement []int) ([]chunk, error) {
	chunks := blocks(placement)
	workers := slices.Max(placement) + 1
	for at, c := range chunks {
		if c.worker != chunks[at%workers].worker || len(chunks)%workers != 0 {
			return nil, fmt.Errorf("stages are on the workers %v, want as many blocks on each, that go round (schedule.Loop)", placement)
		}
	}
	return chunks, nil
}

// folded divides stages into two chunks of one stage for each worker, that go to and fro.
func folded(placement []int) (chunks []chunk, err error) {
	for s, w := range placement {
		if w != placement[len(placement)-1-s] || len(placement) != 2*(slices.Max(placement)+1) {
			return nil, fmt.Errorf("stages are on the workers %v, want two on each, that go to and fro (schedule.V)", placement)
		}
		chunks = append(chunks, chunk{w, s, s + 1})
	}
	return chunks, nil
}
