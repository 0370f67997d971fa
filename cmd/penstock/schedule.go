package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock.example/schedule"
	"penstock.example/internal/draw"
)

func newSchedule() *cobra.Command {
	var shape scheduleShape
	var format string
	cmd := &cobra.Command{
		Use:   "schedule NAME --stages P --chunks M [flags]",
		Short: "Draw a schedule and predict its time and memory, without a model",
		Long: `Draw what each of P devices does when M micro-batches go forward and backward
through a pipeline, and predict how long that takes and how much it holds.

NAME is a schedule:

` + scheduleList() + `

A stage's forward of micro-batch 2 on stage 0 is 0F2, its backward 0B2, or in two
parts 0I2, the gradient of the stage's input, and 0W2, those of its weights. With
--replicas 0RED sums the gradients of stage 0 over all replicas of the pipeline, beside
what its device does next.

Times are those of one stage on one micro-batch, in any unit; a whole backward takes
i and w together, and r is that of a reduction. What a device holds is counted in
micro-batches of a stage, from forward to the end of backward, the running one
included. Links between devices cost nothing, unless --latency or --bandwidth says so;
times are milliseconds then. A value takes the latency and its bytes over the bandwidth;
a link moves one at a time, and no device waits for what it has sent unless --capacity
says so.

  text   the program, with what is sent and received; schedule check reads it
  grid   the time of each action, to the right
  json   actions, what is held, time and bubble
  svg    a picture
  csv    a row of computations for each device, for torch.distributed.pipelining`,
		Example: `  penstock schedule 1f1b --stages 4 --chunks 8
  penstock schedule interleaved --stages 4 --virtual 2 --chunks 8 --format grid
  penstock schedule zb-v --stages 4 --chunks 12 --times f=10,i=14,w=6 --format svg > zb-v.svg
  penstock schedule 1f1b --stages 4 --chunks 8 --times f=10,i=14,w=6 --latency 1ms --bandwidth 1.25GB/s --activation 4MiB`,
		Args: scheduleNamed,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := schedule.Named(args[0])
			if err != nil {
				return badUsage("%s", message(err))
			}
			if most := 1 << 18; (format == "grid" || format == "svg") && shape.devices > most/max(shape.chunks*max(shape.virtual, 2), 1) {
				return badUsage("--format %s: %d devices with %d micro-batches are too many to draw; see --format json", format, shape.devices, shape.chunks)
			}
			p, err := shape.program(s)
			if err != nil {
				return err
			}
			var text []byte
			switch format {
			case "text":
				text = []byte(p.String())
			case "csv":
				text, err = scheduleCSV(p)
			case "json":
				text, err = shape.json(s.Name, p)
			default:
				width, _ := terminalWidth(cmd.OutOrStdout())
				text, err = shape.drawn(s.Name, p, format, width)
			}
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	shape.flags(cmd)
	word(cmd.Flags(), &format, "format", "grid", "`FORMAT` of the output: text, grid, json, svg or csv", "text", "grid", "json", "svg", "csv")
	cmd.AddCommand(newScheduleCheck(), newScheduleCompare())
	return cmd
}

// scheduleList lists the schedules with what they are, a line each.
func scheduleList() string {
	about := map[string]string{
		"gpipe":          "all forwards, then all backwards",
		"1f1b":           "one forward, one backward: holds P micro-batches, not M",
		"1f1b-2x":        "1f1b with twice the forwards in advance, for slow links",
		"zb-h1":          "1f1b with backwards in two parts, in the same memory",
		"zb-h2":          "the same with twice the memory, and less idle",
		"bfs":            "V stages a device, all micro-batches through each",
		"interleaved":    "1f1b with V stages a device",
		"interleaved-zb": "the same with backwards in two parts",
		"zb-v":           "two stages a device, to and fro, backwards in two parts",
		"dualpipe-v":     "two stages a device, to and fro, forwards beside backwards",
	}
	var b strings.Builder
	for _, s := range schedule.Schedules() {
		fmt.Fprintf(&b, "  %-15s%s\n", s.Name, about[s.Name])
	}
	return strings.TrimRight(b.String(), "\n")
}

func scheduleNamed(cmd *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return badUsage("NAME is missing for %q: want a schedule such as 1f1b; see %s --help", cmd.CommandPath(), cmd.CommandPath())
	case 1:
		return nil
	}
	return badUsage("unexpected argument %q for %q; see %s --help", args[1], cmd.CommandPath(), cmd.CommandPath())
}

// scheduleShape is what a schedule is made for.
type scheduleShape struct {
	devices, virtual, chunks int
	times                    scheduleTimes
	replicas                 int
	linkFlags
}

// complete says what is missing.
func (s *scheduleShape) complete() error {
	switch {
	case s.devices == 0:
		return badUsage("--stages is needed: the number of devices of the pipeline, such as 4")
	case s.chunks == 0:
		return badUsage("--chunks is needed: the number of micro-batches, such as 8")
	}
	_, err := s.links()
	return err
}

func (s *scheduleShape) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	count(flags, &s.devices, "stages", 0, "`P` devices of the pipeline, with one stage each or with --virtual of them")
	count(flags, &s.virtual, "virtual", 0, "`V` stages on each device (default: 2 for schedules of several, 1 otherwise)")
	count(flags, &s.chunks, "chunks", 0, "`M` micro-batches of a step")
	count(flags, &s.replicas, "replicas", 1, "`R` copies of the pipeline, which sum their gradients at the end of a step")
	s.times = usualTimes
	flags.Var(&value{text: "f=1,i=1,w=1", read: s.times.read}, "times",
		"`TIMES` of a stage's forward, gradient of the input and gradients of the weights on a micro-batch, and with --replicas of a reduction, r")
	s.register(flags)
}

// program makes the program of a schedule.
func (s *scheduleShape) program(of schedule.Schedule) (*schedule.Program, error) {
	if err := s.complete(); err != nil {
		return nil, err
	}
	p, err := of.Program(s.devices, s.virtual, schedule.Config{MicroBatches: s.chunks, Capacity: s.capacity, Time: s.times.of})
	if err != nil {
		return nil, badUsage("%s", message(err))
	}
	return s.replicated(p), nil
}

// replicated is the program of each replica.
func (s *scheduleShape) replicated(p *schedule.Program) *schedule.Program {
	if s.replicas > 1 {
		return schedule.AddReduce(p)
	}
	return p
}

// scheduleTimes is how long the computations of a stage on a micro-batch take, and the reduction of
// its gradients, in any unit.
type scheduleTimes struct{ forward, input, weight, reduction float64 }

var usualTimes = scheduleTimes{1, 1, 1, 1}

// scheduleUnit is what the unit of scheduleTimes is in virtual time: so much that six decimals count.
const scheduleUnit = time.Millisecond

// read reads times such as f=10,i=14,w=6. What is left out is 1.
func (t *scheduleTimes) read(text string) error {
	*t = usualTimes
	given := map[string]bool{}
	for word := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(strings.TrimSpace(word), "=")
		to, known := map[string]*float64{"f": &t.forward, "i": &t.input, "w": &t.weight, "r": &t.reduction}[name]
		x, err := strconv.ParseFloat(number, 64)
		switch {
		case !known || err != nil || given[name]:
			return fmt.Errorf("%q: want times such as f=10,i=14,w=6, each once", word)
		case !(x >= 0 && x <= 1e4):
			return fmt.Errorf("%q: want a time from 0 to 10000", word)
		}
		*to, given[name] = x, true
	}
	if t.forward+t.input+t.weight == 0 {
		return errors.New("want a time above 0")
	}
	return nil
}

// of is the duration of an action.
func (t scheduleTimes) of(a schedule.Action) time.Duration {
	var x float64
	switch a.Kind {
	case schedule.Forward, schedule.Recompute:
		x = t.forward
	case schedule.Backward:
		x = t.input + t.weight
	case schedule.BackwardInput:
		x = t.input
	case schedule.BackwardWeight:
		x = t.weight
	case schedule.Reduce:
		x = t.reduction
	}
	return time.Duration(math.Round(x * float64(scheduleUnit)))
}

// inUnits says a virtual time in the unit of the times.
func inUnits(d time.Duration) float64 { return float64(d) / float64(scheduleUnit) }

func unitText(d time.Duration) string { return strconv.FormatFloat(inUnits(d), 'g', 6, 64) }

// scheduleLine is the JSON of a schedule. Its fields stay.
type scheduleLine struct {
	Schedule string     `json:"schedule"`
	Workers  [][]string `json:"workers"` // computations of each device, in order
	Held     []int      `json:"held"`    // by device: most micro-batches of a stage, the running one counted
	Makespan float64    `json:"makespan"`
	Bubble   float64    `json:"bubble"` // share of the makespan in which devices are idle, on average
}

// predict is what a step takes, and the share of it in which devices are idle.
func (s *scheduleShape) predict(p *schedule.Program) (makespan time.Duration, idle float64, err error) {
	links, err := s.links()
	if err != nil {
		return 0, 0, err
	}
	return links.Predict(p, s.times.of)
}

func (s *scheduleShape) json(name string, p *schedule.Program) ([]byte, error) {
	makespan, bubble, err := s.predict(p)
	if err != nil {
		return nil, err
	}
	line := scheduleLine{Schedule: name, Makespan: inUnits(makespan), Bubble: bubble}
	for w, held := range schedule.InFlight(p, nil) {
		line.Held = append(line.Held, int(held))
		list := []string{}
		for _, a := range p.Workers[w] {
			if !a.Kind.Transfer() {
				list = append(list, a.String())
			}
		}
		line.Workers = append(line.Workers, list)
	}
	text, err := json.Marshal(line)
	return append(text, '\n'), err
}

func scheduleCSV(p *schedule.Program) ([]byte, error) {
	text, err := p.CSV()
	return []byte(text), err
}

// drawn draws a program as a picture, or as a grid of so many characters.
func (s *scheduleShape) drawn(name string, p *schedule.Program, format string, width int) ([]byte, error) {
	links, err := s.links()
	if err != nil {
		return nil, err
	}
	timeline, err := links.Simulate(p, s.times.of)
	if err != nil {
		return nil, err
	}
	if format == "svg" {
		title := fmt.Sprintf("%s: %d devices", name, len(p.Workers))
		if v := p.Stages / len(p.Workers); v > 1 {
			title += fmt.Sprintf(" with %d stages each", v)
		}
		title += fmt.Sprintf(", %d micro-batches%s", p.MicroBatches, s.text())
		return draw.SVG(timeline, draw.Options{Title: title, Time: unitText}), nil
	}
	idle := 0.0
	for w := range timeline.Workers {
		idle += timeline.Idle(w) / float64(timeline.Workers)
	}
	var b bytes.Buffer
	_, grid, _ := strings.Cut(timeline.GridWidth(width), "\n") // the unit of time is whatever the times are in
	fmt.Fprintf(&b, "%s%s: a step takes %s, of which devices are idle for %.1f %%\n", name, s.text(), unitText(timeline.Makespan()), 100*idle)
	b.WriteString(grid)
	scheduleHeld(&b, p)
	return b.Bytes(), nil
}

// scheduleHeld says what each device holds.
func scheduleHeld(w io.Writer, p *schedule.Program) {
	fmt.Fprint(w, "held at most:")
	for _, n := range schedule.InFlight(p, nil) {
		fmt.Fprintf(w, " %d", int(n))
	}
	fmt.Fprintln(w)
}
