package schedule

import "fmt"

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
	last := map[int]chunk{} // by worker
	for _, c := range chunks {
		if before, again := last[c.worker]; again {
			return nil, fmt.Errorf("worker %d has the stages %d and %d and none between them, want consecutive stages on a worker", c.worker, before.to-1, c.from)
		}
		last[c.worker] = c
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
	workers := 0
	for _, c := range chunks {
		workers = max(workers, c.worker+1)
	}
	for at, c := range chunks {
		if want := chunks[at%workers].worker; c.worker != want {
			return nil, fmt.Errorf("stage %d is on worker %d, want %d as stages go round (schedule.Loop)", c.from, c.worker, want)
		}
	}
	if len(chunks)%workers != 0 {
		return nil, fmt.Errorf("%d blocks of stages go round %d workers, want as many on each",
			len(chunks), workers)
	}
	return chunks, nil
}

// folded divides stages into two chunks of one stage for each worker, that go to and fro.
func folded(placement []int) ([]chunk, error) {
	workers := 0
	for _, w := range placement {
		workers = max(workers, w+1)
	}
	if len(placement) != 2*workers {
		return nil, fmt.Errorf("%d stages on %d workers, want two on each", len(placement), workers)
	}
	var chunks []chunk
	for s, w := range placement {
		if want := placement[min(s, len(placement)-1-s)]; w != want {
			return nil, fmt.Errorf("stage %d is on worker %d, want %d as stages go to and fro (schedule.V)", s, w, want)
		}
		chunks = append(chunks, chunk{w, s, s + 1})
	}
	return chunks, nil
}
