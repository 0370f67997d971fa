package main

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// checkLastBatch refuses a run that comes to an epoch's last batch, if that has fewer rows than there
// are replicas: it would end there, after all the epoch's other steps.
func (j *job) checkLastBatch(context.Context, io.Writer) error {
	samples := j.training.Len()
	rest := samples % j.batch
	if rest == 0 || rest >= j.replicas {
		return nil
	}
	run := j.loop // which is at the step of the checkpoint, if there is one
	run.Steps, run.Epochs, run.Accumulate = j.steps, j.epochs, j.accumulate
	epoch, batch := 0, 0
	if j.from != nil {
		epoch, batch = j.from.Position.Epoch, j.from.Position.Batch
	}
	if !run.EndsEpoch(epoch, batch, (samples+j.batch-1)/j.batch) {
		return nil
	}
	remedy := fmt.Sprintf("--replicas %d", rest)
	if all := fullBatches(samples, j.batch, j.replicas); len(all) > 0 {
		better := "--batch " + strings.Join(all, " or --batch ")
		if remedy = better + ", or " + remedy; j.from != nil { // a run keeps its batch
			remedy = fmt.Sprintf("--replicas %d, or a new run with %s", rest, better)
		}
	}
	return badUsage("--batch %d: an epoch's last batch has %d of the %d samples, for --replicas %d; want %s", j.batch, rest, samples, j.replicas, remedy)
}

// fullBatches are the next smaller and the next larger size of batches of which the last one has a row
// for each replica, as far as there are some.
func fullBatches(samples, batch, replicas int) (sizes []string) {
	for _, by := range []int{-1, 1} {
		for n := batch + by; n >= replicas && n <= samples; n += by {
			if rest := samples % n; rest == 0 || rest >= replicas {
				sizes = append(sizes, fmt.Sprint(n))
				break
			}
		}
	}
	return sizes
}
