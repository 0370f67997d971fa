package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/internal/arg"
	"penstock.example/internal/draw"
	"penstock.example/plan"

	"penstock.example/remat"
	"penstock.example/schedule"
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
i and w together, and r is that of a reduction. With --latency or --bandwidth they are
milliseconds, and a link moves one value at a time. What a device holds is counted in
micro-batches of a stage, the running one included.

  text   the program, with what is sent and received; schedule check reads it
  grid   the time of each action, to the right
  json   actions, what is held, time and bubble
  svg    a picture
  csv    a row of computations for each device, for torch.distributed.pipelining`,
		Example: `  penstock schedule 1f1b --stages 4 --chunks 8
  penstock schedule interleaved --stages 4 --virtual 2 --chunks 8 --format grid
  penstock schedule zb-v --stages 4 --chunks 12 --times f=10,i=14,w=6 --format svg > zb-v.svg
  penstock schedule 1f1b --stages 4 --chunks 8 --times f=10,i=14,w=6 --latency 1ms --bandwidth 1.25GB/s --activation 4MiB`,
		Args: filesNamed("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := schedule.Named(args[0])
			if err != nil {
				return badUsage("%s", message(err))
			}
			if most := 1 << 18; (format == "grid" || format == "svg") &&
				shape.devices > most/max(shape.chunks*max(shape.virtual, 2), 1) {
				return badUsage("--format %s: %d devices with %d micro-batches are too many to draw; see "+
					"--format json", format, shape.devices, shape.chunks)
			}
			if err := shape.check(cmd); err != nil {
				return err
			}
			p, err := shape.program(s, shape.virtual, shape.times.of)
			if err != nil {
				return err
			}
			var text string
			switch format {
			case "text":
				text = p.String()
			case "csv":
				text, err = p.CSV()
			case "json":
				line, err := shape.line(s.Name, p)
				if err != nil {
					return err
				}
				return json.NewEncoder(cmd.OutOrStdout()).Encode(line)
			default:
				width, _ := terminalWidth(cmd.OutOrStdout())
				text, err = shape.drawn(s.Name, p, format, width)
			}
			if err == nil {
				_, err = io.WriteString(cmd.OutOrStdout(), text)
			}
			return err
		},
	}
	shape.flags(cmd)
	word(cmd.Flags(), &format, "format", "grid", "`FORMAT` of the output: text, grid, json, svg or csv",
		"text", "grid", "json", "svg", "csv")
	cmd.AddCommand(newScheduleCheck(), newScheduleCompare())
	return cmd
}

// scheduleList lists the schedules with a description, a line each.
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

// scheduleShape is the size and the costs of a schedule.
type scheduleShape struct {
	devices, virtual, chunks, replicas int
	times                              scheduleTimes
	linkFlags
}

func (s *scheduleShape) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SortFlags = false
	count(flags, &s.devices, "stages", 0, "`P` devices of the pipeline, with one stage each or with "+
		"--virtual of them")
	count(flags, &s.virtual, "virtual", 0, "`V` stages on each device (default: 2 for schedules of several, "+
		"1 otherwise)")
	count(flags, &s.chunks, "chunks", 0, "`M` micro-batches of a step")
	count(flags, &s.replicas, "replicas", 1, "`R` copies of the pipeline, which sum their gradients at the "+
		"end of a step")
	s.times = usualTimes
	flags.Var(&value{text: "f=1,i=1,w=1", read: s.times.read}, "times",
		"`TIMES` of a stage's forward, gradient of the input and gradients of the weights on a micro-batch, "+
			"and with --replicas of a reduction, r")
	s.register(flags)
}

// program makes the program of a schedule, with a number of stages on each device.
func (s *scheduleShape) program(of schedule.Schedule, virtual int,
	takes func(schedule.Action) time.Duration) (
	*schedule.Program, error) {
	p, err := of.Program(s.devices, virtual, schedule.Config{MicroBatches: s.chunks})
	if err != nil {
		return nil, badUsage("%s", message(err))
	}
	if s.replicas > 1 {
		p = schedule.AddReduce(p)
	}
	return p, nil
}

// scheduleTimes is how long the computations of a stage on a micro-batch take, and the reduction of
// its gradients, in any unit.
type scheduleTimes struct{ forward, input, weight, reduction float64 }

var usualTimes = scheduleTimes{1, 1, 1, 1}

// scheduleUnit is the unit of scheduleTimes in virtual time; six decimals count.
const scheduleUnit = time.Millisecond

// read reads times such as f=10,i=14,w=6. The others are 1.
func (t *scheduleTimes) read(text string) error {
	*t = usualTimes
	to := map[string]*float64{"f": &t.forward, "i": &t.input, "w": &t.weight, "r": &t.reduction}
	for word := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(strings.TrimSpace(word), "=")
		x, err := strconv.ParseFloat(number, 64)
		if to[name] == nil || err != nil || !(x >= 0 && x <= 1e4) {
			return fmt.Errorf("%q: want times from 0 to 10000 such as f=10,i=14,w=6", word)
		}
		*to[name] = x
	}
	if t.forward+t.input+t.weight == 0 {
		return errors.New("want a time above 0")
	}
	return nil
}

// of is the duration of an action.
func (t scheduleTimes) of(a schedule.Action) time.Duration {
	x := map[schedule.Kind]float64{
		schedule.Forward: t.forward, schedule.Recompute: t.forward, schedule.Backward: t.input + t.weight,
		schedule.BackwardInput: t.input, schedule.BackwardWeight: t.weight, schedule.Reduce: t.reduction,
	}[a.Kind]
	return time.Duration(math.Round(x * float64(scheduleUnit)))
}

func unitText(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(scheduleUnit), 'g', 6, 64)
}

// scheduleLine is the JSON of a schedule. Its fields stay.
type scheduleLine struct {
	Schedule string     `json:"schedule"`
	Workers  [][]string `json:"workers"` // computations of each device, in order
	Held     []int      `json:"held"`    // by device: most micro-batches of a stage, the running one counted
	Makespan float64    `json:"makespan"`
	Bubble   float64    `json:"bubble"` // share of the makespan in which devices are idle, on average
}

func (s *scheduleShape) line(name string, p *schedule.Program) (scheduleLine, error) {
	makespan, bubble, err := s.links.Predict(p, s.times.of)
	line := scheduleLine{Schedule: name, Makespan: float64(makespan) / float64(scheduleUnit), Bubble: bubble}
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
	return line, err
}

// drawn draws a program as a picture, or as a grid of a width in characters.
func (s *scheduleShape) drawn(name string, p *schedule.Program, format string, width int) (string, error) {
	timeline, err := s.links.Simulate(p, s.times.of)
	if err != nil {
		return "", err
	}
	if format == "svg" {
		title := fmt.Sprintf("%s: %d devices", name, len(p.Workers))
		if v := p.Stages / len(p.Workers); v > 1 {
			title += fmt.Sprintf(" with %d stages each", v)
		}
		title += fmt.Sprintf(", %s%s", counted(p.MicroBatches, "micro-batch"), s.text())
		return string(draw.SVG(timeline, draw.Options{Title: title, Time: unitText})), nil
	}
	idle := 0.0
	for w := range timeline.Workers {
		idle += timeline.Idle(w) / float64(timeline.Workers)
	}
	// the unit of time is whatever the times are in
	_, grid, _ := strings.Cut(timeline.GridWidth(width), "\n")
	return fmt.Sprintf("%s%s: a step takes %s, of which devices are idle for %.1f %%\n%s%s", name, s.text(),
		unitText(timeline.Makespan()), 100*idle, grid, heldText(p)), nil
}

// heldText lists the micro-batches that each device holds.
func heldText(p *schedule.Program) string {
	text := "held at most:"
	for _, n := range schedule.InFlight(p, nil) {
		text += fmt.Sprintf(" %d", int(n))
	}
	return text + "\n"
}

func newScheduleCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check that a program of a pipeline can run",
		Long: `Check that the program in a file can run to its end and gives bit-equal results:
every computation is there once, sends and receives match, nothing comes before what
it needs, gradients are summed in ascending order, and no device waits for ever; and
whether it can where links hold no values, and where they keep order.

FILE is what penstock schedule --format text prints, or a CSV of
torch.distributed.pipelining, or - for standard input. The exit code is 1 if the
program cannot run, and 2 if the file is no program.`,
		Example: `  penstock schedule check program.txt
  penstock schedule zb-h1 --stages 4 --chunks 8 --format csv | penstock schedule check -`,
		Args: filesNamed("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := readParsed(cmd, args[0], func(text []byte) (*schedule.Program,
				error) {
				return schedule.Load(string(text))
			})
			if err != nil {
				return err
			}
			if err := schedule.Check(p, schedule.Limits{}); err != nil {
				return fmt.Errorf("%s: %s", inputName(args[0]), message(err))
			}
			links := "on links of any kind"
			switch meet, order := schedule.Check(p, schedule.Limits{Meet: true}), schedule.Check(p,
				schedule.Limits{InOrder: true}); {
			case meet != nil && order != nil:
				links = "on links that hold values and name them, not on links that meet, nor on links in " +
					"order"
			case meet != nil:
				links = "on links that hold values, not on links that meet"
			case order != nil:
				links = "on links that name what they carry, not on links in order"
			}
			reduced := ""
			if p.Reduces() {
				reduced = ", gradients reduced over replicas"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(),
				"the program can run %s: %d stages on %d devices, %d micro-batches%s\n%s",
				links, p.Stages, len(p.Workers), p.MicroBatches, reduced, heldText(p))
			return err
		},
	}
}

func newScheduleCompare() *cobra.Command {
	var shape scheduleShape
	var profile, format string
	cmd := &cobra.Command{
		Use:   "compare --stages P --chunks M [flags]",
		Short: "Compare all schedules at one number of devices and micro-batches",
		Long: `Compare what all schedules take on P devices with M micro-batches: the time of a step,
the share of it that devices are idle, and the most that a device holds. The
fastest come first, and of these the one that holds least.

Times are those of a device's whole share of the model on one micro-batch: a schedule
with V stages on each device cuts that share in V, and not what it sends.

With --profile the layers of a chain (penstock profile) are cut evenly by time, and the
peak of each device is planned from the bytes of the chain, with nothing recomputed.
Weights count as much as their gradients; targets, buffers, weights that are not trained
and the optimizer's state are not counted.`,
		Example: `  penstock schedule compare --stages 4 --chunks 16
  penstock schedule compare --stages 4 --chunks 16 --times f=10,i=14,w=6
  penstock schedule compare --stages 2 --chunks 8 --profile chain.json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := shape.check(cmd); err != nil {
				return err
			}
			var chain *remat.Chain
			if profile != "" {
				switch {
				case cmd.Flags().Changed("times"):
					return badUsage("--times and --profile: want one of them")
				case shape.replicas > 1:
					return badUsage("--replicas %d: a profile does not say how long a reduction takes; want "+
						"--times with it",
						shape.replicas)
				}
				c, err := readChain(cmd, profile)
				if err != nil {
					return err
				}
				if chain = &c; shape.devices > len(c.Layers) {
					return badUsage("--stages %d: the chain has %d layers; want at most as many",
						shape.devices, len(c.Layers))
				}
			}
			lines, err := shape.compare(cmd, chain)
			if err != nil {
				return err
			}
			return printResult(cmd, format, lines, func(w io.Writer) { showSchedules(w, lines) })
		},
	}
	shape.flags(cmd)
	path(cmd.Flags(), &profile, "profile", "`FILE` of the chain of a model, which penstock profile writes")
	formatFlag(cmd.Flags(), &format)
	return cmd
}

// comparedSchedule is the JSON of one schedule among others. Its fields stay.
type comparedSchedule struct {
	Schedule string    `json:"schedule"`
	Virtual  int       `json:"virtual"`
	Makespan float64   `json:"makespan"` // in microseconds of a chain
	Bubble   float64   `json:"bubble"`
	Held     []float64 `json:"held"`              // by device: micro-batches of its share; of a chain the bytes saved for backward
	Peak     []int64   `json:"peak,omitempty"`    // by device, of a chain
	Balance  []int     `json:"balance,omitempty"` // by stage: layers of a chain
}

// compare lists all schedules, the best first. A chain takes the place of times; schedules that have
// more stages than it has layers are left out, and stderr says so.
func (s *scheduleShape) compare(cmd *cobra.Command, chain *remat.Chain) (lines []comparedSchedule,
	err error) {
	for _, of := range schedule.Schedules() {
		virtual := of.Usual()
		if of.Virtual == 0 {
			virtual = cmp.Or(s.virtual, virtual)
		}
		if chain != nil && s.devices*virtual > len(chain.Layers) {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is left out, as the chain has %d layers\n", of.Name,
				len(chain.Layers))
			continue
		}
		costs := stageCosts{unit: scheduleUnit, share: float64(virtual),
			time: func(a schedule.Action) time.Duration {
				return time.Duration(math.Round(float64(s.times.of(a)) / float64(virtual)))
			}}
		if chain != nil {
			if costs, err = chainCosts(chain, s.devices*virtual); err != nil {
				return nil, err
			}
		}
		p, err := s.program(of, virtual, costs.time)
		if err != nil {
			return nil, err
		}
		makespan, idle, err := s.links.Predict(p, costs.time)
		if err != nil {
			return nil, err
		}
		line := comparedSchedule{Schedule: of.Name, Virtual: virtual,
			Makespan: float64(makespan) / float64(costs.unit),
			Bubble:   idle, Balance: costs.layers}
		for _, n := range schedule.InFlight(p, costs.held) {
			line.Held = append(line.Held, float64(n)/costs.share)
		}
		if chain != nil {
			if line.Peak, err = chainPeaks(cmd.Context(), chain, costs.layers, p); err != nil {
				return nil, fmt.Errorf("%s: %w", of.Name, err)
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
	return lines, nil
}

// stageCosts is the costs of the stages of a schedule.
type stageCosts struct {
	time   func(schedule.Action) time.Duration
	unit   time.Duration         // of the times that are printed
	held   func(stage int) int64 // bytes that a chain saves of a micro-batch in flight; nil counts micro-batches
	share  float64               // stages of a device
	layers []int                 // of a chain, by stage
}

// chainCosts cuts a chain evenly by time into stages.
func chainCosts(chain *remat.Chain, stages int) (out stageCosts, err error) {
	var times []float64
	for _, l := range chain.Layers {
		times = append(times, l.Forward+l.Backward)
	}
	if out.layers, err = plan.Partition(times, stages); err != nil {
		return out, err
	}
	all, weights, at := make([]remat.Layer, stages), make([]float64, stages), 0
	for stage, n := range out.layers {
		for i := at; i < at+n; i++ {
			l, sum := chain.Layers[i], &all[stage]
			sum.Forward, sum.Backward, sum.Saved = sum.Forward+l.Forward, sum.Backward+l.Backward,
				sum.Saved+l.Saved
			weights[stage] += chain.Second(i)
		}
		at += n
	}
	out.unit, out.share, out.held = time.Microsecond, 1, func(stage int) int64 { return all[stage].Saved }
	out.time = func(a schedule.Action) time.Duration {
		t := all[a.Stage]
		us := map[schedule.Kind]float64{
			schedule.Forward: t.Forward, schedule.Recompute: t.Forward, schedule.Backward: t.Backward,
			schedule.BackwardInput: t.Backward - weights[a.Stage], schedule.BackwardWeight: weights[a.Stage],
		}[a.Kind]
		return time.Duration(us * float64(time.Microsecond))
	}
	return out, nil
}

// chainPeaks returns the peak of each device in a step of a program, without recomputation. layers is
// the number of layers of the chain in each stage.
func chainPeaks(ctx context.Context, chain *remat.Chain, layers []int, p *schedule.Program) (peaks []int64,
	err error) {
	problem := plan.FromChain(*chain, layers, p.Placement(), p.MicroBatches)
	problem.Schedule = schedule.Fixed(p)
	plan, err := plan.Solve(ctx, problem) // without a limit it keeps everything
	if err != nil {
		return nil, err
	}
	for _, d := range plan.Devices {
		peaks = append(peaks, d.Peak)
	}
	return peaks, nil
}

// showSchedules prints a table, of a chain with the highest peak.
func showSchedules(w io.Writer, lines []comparedSchedule) {
	title := "HELD AT MOST"
	if len(lines) > 0 && lines[0].Peak != nil {
		title = "HIGHEST PEAK"
	}
	row(w, "SCHEDULE", "STAGES A DEVICE", "STEP", "IDLE", title)
	for _, l := range lines {
		step, held := fmt.Sprintf("%.6g", l.Makespan), fmt.Sprintf("%.4g", slices.Max(l.Held))
		if l.Peak != nil {
			most := slices.Max(l.Peak)
			step, held = micros(l.Makespan), fmt.Sprintf("%s on device %d", formatBytes(most),
				slices.Index(l.Peak, most))
		}
		row(w, l.Schedule, l.Virtual, step, fmt.Sprintf("%.1f %%", 100*l.Bubble), held)
	}
}

// linkFlags say what links between devices cost.
type linkFlags struct {
	latency    time.Duration
	bandwidth  float64        // bytes a second; 0 is no bound
	activation int64          // bytes that move between neighbours for a micro-batch
	links      schedule.Links // which check makes
}

func (l *linkFlags) register(s *pflag.FlagSet) {
	latencyFlag(s, &l.latency)
	bandwidthFlag(s, &l.bandwidth)
	size(s, &l.activation, "activation",
		"bytes of a stage's output for a micro-batch, and of its gradient, as a `SIZE` such as 4MiB")
}

func latencyFlag(s *pflag.FlagSet, to *time.Duration) {
	s.Var(&value{read: func(text string) (err error) {
		if *to, err = time.ParseDuration(text); err != nil || *to < 0 || *to > time.Hour {
			return errors.New("want a time such as 1ms or 50us, at most 1h")
		}
		return nil
	}}, "latency", "`TIME` that a value is on its way between two devices, such as 1ms (default none)")
}

func bandwidthFlag(s *pflag.FlagSet, to *float64) {
	s.Var(&value{read: func(text string) (err error) {
		*to, err = parseRate(text)
		return err
	}}, "bandwidth", "`RATE` of a link between two devices, such as 1.25GB/s or 10Gbit/s (default no bound)")
}

// parseRate reads bytes, or bits, a second.
func parseRate(text string) (float64, error) {
	amount, found := strings.CutSuffix(text, "/s")
	bits := 1.0
	if number, ok := strings.CutSuffix(amount, "bit"); ok {
		amount, bits = number+"B", 8
	}
	n, err := arg.ParseBytes(amount)
	if !found || err != nil || n < 1 {
		return 0, errors.New("want a rate such as 1.25GB/s or 10Gbit/s")
	}
	return float64(n) / bits, nil
}

// check refuses flags that lack others, and makes the links.
func (s *scheduleShape) check(cmd *cobra.Command) error {
	if err := need(cmd, "stages", "chunks"); err != nil {
		return err
	}
	if (s.bandwidth > 0) != (s.activation > 0) {
		return badUsage("want --bandwidth and --activation, the bytes that a stage sends for a micro-batch, " +
			"or none of them")
	}
	if s.latency > 0 || s.bandwidth > 0 {
		s.links = schedule.Uniform(s.latency, s.bandwidth,
			func(schedule.Action) int64 { return s.activation })
	}
	return nil
}

// text describes the links; it is empty if they cost nothing.
func (l *linkFlags) text() string {
	if l.latency == 0 && l.bandwidth == 0 {
		return ""
	}
	out := fmt.Sprintf(", links of %v", l.latency)
	if l.bandwidth > 0 {
		out += fmt.Sprintf(" and %.3g GB/s", l.bandwidth/1e9)
	}
	return out
}
