package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock.example/balance"
	"penstock.example/remat"
	"penstock.example/schedule"
)

func newScheduleCompare() *cobra.Command {
	var shape scheduleShape
	var profile, format string
	cmd := &cobra.Command{
		Use:   "compare --stages P --chunks M [flags]",
		Short: "Compare all schedules at one number of devices and micro-batches",
		Long: `Compare what all schedules take on P devices with M micro-batches: the time of a step,
the share of it that devices are idle, and the most that a device holds. The
fastest come first, and of these the one that holds least.

Here times are those of a device's whole share of the model on one micro-batch, in any
unit, and so is what is held: a schedule with V stages on each device cuts that share
in V, and not what it sends. With --latency or --bandwidth times are milliseconds. With
--profile the layers of a chain (penstock profile) are cut evenly by time into as many
stages as there are. The peak of a device is planned from the bytes of the chain, with
nothing recomputed: what layers save, what waits on links, gradients, temporaries, the
batch's input, and weights, which count as much as their gradients. Not counted are
targets, buffers, weights that are not trained and the optimizer's state. A chain does
not say what backwards after the first take to add to gradients: it counts as nothing.
What the first part of a backward leaves to the second, and how long each takes, a chain
of penstock profile says; where one does not, it is half the time, the inputs of layers
that have weights, and the gradients of their outputs. A skip counts on the stages that
it passes. JSON has the layers of each stage too ("balance"), and what layers save for
backward ("held").`,
		Example: `  penstock schedule compare --stages 4 --chunks 16
  penstock schedule compare --stages 4 --chunks 16 --times f=10,i=14,w=6
  penstock schedule compare --stages 2 --chunks 8 --profile chain.json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var chain *remat.Chain
			if profile != "" {
				if cmd.Flags().Changed("times") {
					return badUsage("--times and --profile: want one of them")
				}
				if shape.replicas > 1 {
					return badUsage("--replicas %d: a profile does not say how long a reduction takes; want --times with it", shape.replicas)
				}
				c, err := readChain(cmd, profile)
				if err != nil {
					return err
				}
				chain = &c
			}
			lines, left, err := shape.compare(cmd.Context(), chain)
			if err != nil {
				return err
			}
			if len(left) > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "left out, as the chain has %d layers: %s\n", len(chain.Layers), strings.Join(left, ", "))
			}
			if format == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(lines)
			}
			return showSchedules(cmd.OutOrStdout(), lines, chain != nil)
		},
	}
	shape.flags(cmd)
	path(cmd.Flags(), &profile, "profile", "`FILE` of the chain of a model, which penstock profile writes")
	tableOrJSON(cmd.Flags(), &format, "table or json")
	return cmd
}

// comparedSchedule is the JSON of one schedule among others. Its fields stay.
type comparedSchedule struct {
	Schedule string    `json:"schedule"`
	Virtual  int       `json:"virtual"`
	Makespan float64   `json:"makespan"` // in microseconds of a chain
	Bubble   float64   `json:"bubble"`
	Held     []float64 `json:"held"`              // by device: micro-batches of its share; of a chain the bytes saved for backward
	Peak     []int64   `json:"peak,omitempty"`    // by device, of a chain: see chainPeaks
	Balance  []int     `json:"balance,omitempty"` // by stage: layers of a chain
}

// compare lists all schedules, the best first, and the names of those that have more stages than a
// chain has layers. A chain takes the place of times.
func (s *scheduleShape) compare(ctx context.Context, chain *remat.Chain) (lines []comparedSchedule, left []string, err error) {
	if err := s.complete(); err != nil {
		return nil, nil, err
	}
	if chain != nil && s.devices > len(chain.Layers) {
		return nil, nil, badUsage("--stages %d: the chain has %d layers; want at most as many", s.devices, len(chain.Layers))
	}
	links, err := s.links()
	if err != nil {
		return nil, nil, err
	}
	for _, of := range schedule.Schedules() {
		virtual := of.Usual()
		if of.Virtual == 0 {
			virtual = cmp.Or(s.virtual, virtual)
		}
		if chain != nil && s.devices*virtual > len(chain.Layers) {
			left = append(left, of.Name)
			continue
		}
		costs, err := s.costs(virtual, chain)
		if err != nil {
			return nil, nil, err
		}
		p, err := of.Program(s.devices, virtual, schedule.Config{MicroBatches: s.chunks, Capacity: s.capacity, Time: costs.time})
		if err != nil {
			return nil, nil, badUsage("%s", message(err))
		}
		p = s.replicated(p)
		makespan, idle, err := links.Predict(p, costs.time)
		if err != nil {
			return nil, nil, err
		}
		line := comparedSchedule{Schedule: of.Name, Virtual: virtual, Makespan: float64(makespan) / float64(costs.unit), Bubble: idle, Balance: costs.layers}
		for _, n := range schedule.InFlight(p, costs.held) {
			line.Held = append(line.Held, float64(n)/costs.share)
		}
		if chain != nil {
			if line.Peak, err = chainPeaks(ctx, chain, costs.layers, p); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", of.Name, err)
			}
		}
		lines = append(lines, line)
	}
	slices.SortStableFunc(lines, func(a, b comparedSchedule) int {
		held := cmp.Compare(slices.Max(a.Held), slices.Max(b.Held))
		if chain != nil {
			held = cmp.Compare(slices.Max(a.Peak), slices.Max(b.Peak))
		}
		return cmp.Or(cmp.Compare(a.Makespan, b.Makespan), held)
	})
	return lines, left, nil
}

// stageCosts is what the stages of a schedule cost.
type stageCosts struct {
	time   func(schedule.Action) time.Duration
	unit   time.Duration         // of the times that are printed
	held   func(stage int) int64 // bytes that a chain saves of a micro-batch in flight; nil counts micro-batches
	share  float64               // in how many parts what a device holds of a micro-batch is cut
	layers []int                 // of a chain, by stage
}

// costs returns what stages cost. A chain has at least as many layers.
func (s *scheduleShape) costs(virtual int, chain *remat.Chain) (out stageCosts, err error) {
	if chain == nil {
		return stageCosts{unit: scheduleUnit, share: float64(virtual), time: func(a schedule.Action) time.Duration {
			return time.Duration(math.Round(float64(s.times.of(a)) / float64(virtual)))
		}}, nil
	}
	type sums struct {
		forward, backward, weights float64
		saved                      int64
	}
	stages := make([]sums, s.devices*virtual)
	if out.layers, err = balancedLayers(chain, len(stages)); err != nil {
		return out, err
	}
	at := 0
	for i, n := range out.layers {
		for k, l := range chain.Layers[at : at+n] {
			t := &stages[i]
			t.forward, t.backward, t.weights, t.saved = t.forward+l.Forward, t.backward+l.Backward, t.weights+chain.Second(at+k), t.saved+l.Saved
		}
		at += n
	}
	out.unit, out.share, out.held = time.Microsecond, 1, func(stage int) int64 { return stages[stage].saved }
	out.time = func(a schedule.Action) time.Duration {
		var us float64
		switch t := stages[a.Stage]; a.Kind {
		case schedule.Forward, schedule.Recompute:
			us = t.forward
		case schedule.Backward:
			us = t.backward
		case schedule.BackwardInput:
			us = t.backward - t.weights
		case schedule.BackwardWeight:
			us = t.weights
		}
		return time.Duration(us * float64(time.Microsecond))
	}
	return out, nil
}

// balancedLayers cuts a chain evenly by time: the layers of each stage.
func balancedLayers(chain *remat.Chain, stages int) ([]int, error) {
	var both []float64
	for _, l := range chain.Layers {
		both = append(both, l.Forward+l.Backward)
	}
	return balance.Partition(both, stages)
}

// showSchedules prints a table: of a chain with the peak of each device, or only the highest where these
// do not fit a line of 80 columns.
func showSchedules(w io.Writer, lines []comparedSchedule, chain bool) error {
	if !chain {
		return scheduleTable(newTable(w), lines, "HELD AT MOST", func(l comparedSchedule) string { return fmt.Sprintf("%.4g", slices.Max(l.Held)) })
	}
	var text bytes.Buffer
	err := scheduleTable(&table{to: &text, width: math.MaxInt}, lines, "PEAK OF EACH DEVICE", func(l comparedSchedule) string {
		var peaks []string
		for _, n := range l.Peak {
			peaks = append(peaks, formatBytes(n))
		}
		return strings.Join(peaks, "  ")
	})
	if err == nil && slices.ContainsFunc(strings.Split(text.String(), "\n"), func(line string) bool { return len(line) > 80 }) {
		text.Reset()
		err = scheduleTable(newTable(&text), lines, "HIGHEST PEAK", func(l comparedSchedule) string {
			most := slices.Max(l.Peak)
			return fmt.Sprintf("%s on device %d", formatBytes(most), slices.Index(l.Peak, most))
		})
	}
	if err != nil {
		return err
	}
	_, err = w.Write(text.Bytes())
	return err
}

// scheduleTable prints a table whose last column says what is held.
func scheduleTable(t *table, lines []comparedSchedule, title string, held func(comparedSchedule) string) error {
	fmt.Fprintf(t, "SCHEDULE\tSTAGES A DEVICE\tSTEP\tIDLE\t%s\n", title)
	for _, l := range lines {
		step := fmt.Sprintf("%.6g", l.Makespan)
		if l.Peak != nil {
			step = micros(l.Makespan)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%.1f %%\t%s\n", l.Schedule, l.Virtual, step, 100*l.Bubble, held(l))
	}
	return t.Flush()
}
