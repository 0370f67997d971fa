package command

import (
	"cmp"
	"context"
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
	"penstock.example/internal/option"
	"penstock.example/internal/planfile"
	"penstock.example/internal/progress"
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
through a pipeline. NAME is a schedule:

  gpipe           all forwards, then all backwards
  1f1b            one forward, one backward: holds P micro-batches, not M
  1f1b-2x         1f1b with twice the forwards in advance, for slow links
  zb-h1           1f1b with split backwards, in the same memory
  zb-h2           zb-h1 with twice the memory and less idle time
  bfs             V stages a device; all micro-batches pass one, then the next
  interleaved     1f1b with V stages a device
  interleaved-zb  interleaved with split backwards
  zb-v            two stages a device in a V, split backwards
  dualpipe-v      two stages a device in a V, forwards beside backwards

--times are for one stage and one micro-batch, in any unit, or in milliseconds with
--latency or --bandwidth. A whole backward takes i and w together.

0F2 is the forward of micro-batch 2 on stage 0, and 0B2 its backward. A split backward is
0I2 for the gradient of the input and 0W2 for the gradients of the weights.`,
		Example: `  penstock schedule 1f1b --stages 4 --chunks 8
  penstock schedule zb-v --stages 4 --chunks 12 --times f=10,i=14,w=6 --format svg > zb-v.svg`,
		Args: arguments("NAME", "--stages", "--chunks"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := schedule.Named(args[0])
			if err != nil {
				return badUsage("%s", message(err))
			}
			links, err := shape.links()
			drawn := format == "grid" || format == "svg"
			err = cmp.Or(err, refuseWithout(cmd.Flags(), drawn, "--format grid or svg", "times",
				"latency", "bandwidth", "activation"))
			if err != nil {
				return err
			}
			p, err := s.Program(shape.devices, shape.virtual, schedule.Config{MicroBatches: shape.chunks})
			if err != nil {
				return wrongInput(err)
			}
			width, _ := progress.Width(cmd.OutOrStdout())
			text, err := shape.draw(s.Name, p, links, format, width)
			if err == nil {
				_, err = io.WriteString(cmd.OutOrStdout(), text)
			}
			return err
		},
	}
	shape.register(cmd.Flags())
	option.Word(cmd.Flags(), &format, "format", "grid",
		"`FORMAT` of the output: grid, with a row for each device; "+
			"svg, a picture; text, a program for schedule check; or csv, for torch.distributed.pipelining",
		"grid", "text", "svg", "csv")
	cmd.AddCommand(newScheduleCheck(), newScheduleCompare())
	return cmd
}

func scheduleNames() (names []string) {
	for _, s := range schedule.Schedules() {
		names = append(names, s.Name)
	}
	return names
}

type scheduleShape struct {
	devices, virtual, chunks int
	forward, input, weight   float64 // times of a stage on a micro-batch, in any unit
	linkFlags
	activation int64 // bytes that move between neighbours for a micro-batch
}

// scheduleUnit is the virtual time of one unit of --times.
const scheduleUnit = time.Millisecond

func (s *scheduleShape) register(flags *pflag.FlagSet) {
	flags.SortFlags = false
	option.Count(flags, &s.devices, "stages", 0, "`P` devices of the pipeline")
	option.Count(flags, &s.virtual, "virtual", 0,
		"`V` stages on each device, if NAME has several (default 2)")
	option.Count(flags, &s.chunks, "chunks", 0, "`M` micro-batches of a step")
	s.forward, s.input, s.weight = 1, 1, 1
	flags.Var(&option.Value{Text: "f=1,i=1,w=1", Read: func(text string) error {
		_, err := fmt.Sscanf(text+";", "f=%g,i=%g,w=%g;", &s.forward, &s.input, &s.weight)
		if sum := s.forward + s.input + s.weight; err != nil || !(sum > 0 && sum <= 1e4) ||
			min(s.forward, s.input, s.weight) < 0 {
			return errors.New("want times of at most 10000 together, such as f=10,i=14,w=6")
		}
		return nil
	}}, "times", "`TIMES` of a stage: forward, gradient of the input, gradients of the weights")
	s.linkFlags.register(flags)
	option.Size(flags, &s.activation, "activation",
		"`SIZE` of a stage's output and of its gradient, such as 4MiB")
}

// links checks the flags and makes the links between devices.
func (s *scheduleShape) links() (l schedule.Links, err error) {
	if (s.Bandwidth > 0) != (s.activation > 0) {
		return l, badUsage("want both --bandwidth and --activation, or neither")
	}
	cost := schedule.Transfer{Latency: s.Latency}
	if s.Bandwidth > 0 {
		cost.Duration = time.Duration(float64(s.activation) / s.Bandwidth * float64(time.Second))
	}
	l.Cost = func(schedule.Action) schedule.Transfer { return cost }
	return l, nil
}

func (s *scheduleShape) duration(a schedule.Action) time.Duration {
	return time.Duration(math.Round(float64(scheduleUnit) * map[schedule.Kind]float64{
		schedule.Forward: s.forward, schedule.Recompute: s.forward, schedule.Backward: s.input + s.weight,
		schedule.BackwardInput: s.input, schedule.BackwardWeight: s.weight,
	}[a.Kind]))
}

// draw writes a program in a format. A grid has a width in characters.
func (s *scheduleShape) draw(name string, p *schedule.Program, links schedule.Links, format string,
	width int) (string, error) {
	switch format {
	case "text":
		return p.String(), nil
	case "csv":
		return p.CSV()
	}
	timeline, err := links.Simulate(p, s.duration)
	if err != nil {
		return "", err
	}
	units := func(d time.Duration) string {
		return strconv.FormatFloat(float64(d)/float64(scheduleUnit), 'g', 6, 64)
	}
	if format == "svg" {
		return string(draw.SVG(timeline, draw.Options{Title: name + ": " + programSize(p), Time: units})), nil
	}
	_, grid, _ := strings.Cut(timeline.GridWidth(width), "\n") // without the unit of time, which may be any
	return fmt.Sprintf("%s: a step takes %s, of which devices are idle for %.1f %%\n%s%s", name,
		units(timeline.Makespan()), 100*idle(timeline), grid, heldText(p)), nil
}

// idle returns the share of a step in which a device is idle, on average.
func idle(t schedule.Timeline) (share float64) {
	for w := range t.Workers {
		share += t.Idle(w) / float64(t.Workers)
	}
	return share
}

func programSize(p *schedule.Program) string {
	return fmt.Sprintf("%s on %s, %s", counted(p.Stages, "stage"), counted(len(p.Workers), "device"),
		counted(p.MicroBatches, "micro-batch"))
}

// heldText lists the most micro-batches that each device holds at once.
func heldText(p *schedule.Program) string {
	return "held at most: " + strings.Trim(fmt.Sprint(schedule.InFlight(p)), "[]") + "\n"
}

func newScheduleCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check that a program of a pipeline can run",
		Long: `Check that a program can run to its end and gives the same bits with any timing. It must
have every computation once and after its inputs. Its sends and receives must match, and no
worker may wait for ever.

FILE is a program of penstock schedule --format text, or a CSV of
torch.distributed.pipelining. If the program cannot run the exit code is 1.`,
		Example: `  penstock schedule check program.txt
  penstock schedule zb-h1 --stages 4 --chunks 8 --format csv | penstock schedule check -`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := readParsed(cmd, args[0], func(text []byte) (*schedule.Program, error) {
				return schedule.Parse(string(text))
			})
			if err != nil {
				return err
			}
			if err := schedule.Check(p); err != nil {
				return fmt.Errorf("%s: %s", inputName(args[0]), message(err))
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), "the program can run: ", programSize(p), "\n", heldText(p))
			return err
		},
	}
}

func newScheduleCompare() *cobra.Command {
	var shape scheduleShape
	var profile string
	cmd := &cobra.Command{
		Use:   "compare --stages P --chunks M [flags]",
		Short: "Compare all schedules at one number of devices and micro-batches",
		Long: `Compare all schedules on P devices with M micro-batches, the fastest first: the time of
a step, the share of it that devices are idle, and the most micro-batches that a device
holds. --times are for all layers of a device; a schedule with V stages cuts them in V.

With --profile the layers of a chain (penstock profile) are cut evenly by time, and the
highest peak is given, without recomputation and without the optimizer's state.`,
		Example: `  penstock schedule compare --stages 4 --chunks 16 --times f=10,i=14,w=6
  penstock schedule compare --stages 2 --chunks 8 --profile chain.json`,
		Args: arguments("--stages", "--chunks"),
	}
	shape.register(cmd.Flags())
	option.Path(cmd.Flags(), &profile, "profile", "`FILE` of penstock profile, in place of --times")
	return resultVerb(cmd, "", func(cmd *cobra.Command, _ []string) (r result, err error) {
		links, err := shape.links()
		var chain remat.Chain
		switch {
		case err != nil:
		case profile != "" && cmd.Flags().Changed("times"):
			err = badUsage("--times and --profile: want one of them")
		case profile != "":
			chain, err = readParsed(cmd, profile, planfile.ParseChain)
		}
		if err != nil {
			return r, err
		}
		lines := []comparedSchedule{}
		for _, named := range schedule.Schedules() {
			virtual := named.Usual()
			if named.Virtual == 0 {
				virtual = cmp.Or(shape.virtual, virtual)
			}
			if profile != "" && shape.devices*virtual > len(chain.Layers) {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s is left out, as the chain has %d layers\n", named.Name,
					len(chain.Layers))
				continue
			}
			line, err := shape.compare(cmd.Context(), named, virtual, links, chain)
			if err != nil {
				return r, err
			}
			lines = append(lines, line)
		}
		slices.SortStableFunc(lines, func(a, b comparedSchedule) int {
			return cmp.Or(cmp.Compare(a.Makespan, b.Makespan), cmp.Compare(a.most, b.most))
		})
		return result{line: lines, text: func(w io.Writer) {
			title := "HELD AT MOST"
			if profile != "" {
				title = "HIGHEST PEAK"
			}
			row(w, "SCHEDULE", "STAGES A DEVICE", "STEP", "IDLE", title)
			for _, l := range lines {
				step, most := fmt.Sprintf("%.6g", l.Makespan), fmt.Sprintf("%.4g", l.most)
				if profile != "" {
					step, most = micros(l.Makespan), formatBytes(int64(l.most))
				}
				row(w, l.Schedule, l.Virtual, step, fmt.Sprintf("%.1f %%", 100*l.Bubble), most)
			}
		}}, nil
	})
}

type comparedSchedule struct {
	Schedule string    `json:"schedule"`
	Virtual  int       `json:"virtual"`
	Makespan float64   `json:"makespan"` // in units of --times, or microseconds with --profile
	Bubble   float64   `json:"bubble"`
	Held     []float64 `json:"held,omitempty"` // by device: most micro-batches on all of its layers
	// With --profile:
	Peak    []int64 `json:"peak,omitempty"`    // by device: bytes
	Balance []int   `json:"balance,omitempty"` // by stage: layers

	most float64 // of Peak or of Held
}

// compare simulates a schedule by --times, or by the costs of a chain that is cut evenly by time.
func (s *scheduleShape) compare(ctx context.Context, named schedule.Schedule, virtual int,
	links schedule.Links, chain remat.Chain) (l comparedSchedule, err error) {
	l = comparedSchedule{Schedule: named.Name, Virtual: virtual}
	p, err := named.Program(s.devices, virtual, schedule.Config{MicroBatches: s.chunks})
	if err != nil {
		return l, wrongInput(err)
	}
	var timeline schedule.Timeline
	unit := scheduleUnit
	if chain.Layers == nil {
		timeline, err = links.Simulate(p,
			func(a schedule.Action) time.Duration { return s.duration(a) / time.Duration(virtual) })
		for _, n := range schedule.InFlight(p) {
			l.Held = append(l.Held, float64(n)/float64(virtual))
			l.most = max(l.most, l.Held[len(l.Held)-1])
		}
	} else {
		unit = time.Microsecond
		var times []float64
		for _, layer := range chain.Layers {
			times = append(times, layer.Forward+layer.Backward)
		}
		if l.Balance, err = plan.Partition(times, p.Stages); err != nil {
			return l, err
		}
		problem := plan.FromChain(chain, l.Balance, p.Placement(), s.chunks)
		problem.Schedule = named.Generate
		solved, failed := plan.Solve(ctx, problem) // without a limit nothing is recomputed
		if failed != nil {
			return l, failed
		}
		timeline, _, err = solved.TimelineOver(links)
		for _, d := range solved.Devices {
			l.Peak, l.most = append(l.Peak, d.Peak), max(l.most, float64(d.Peak))
		}
	}
	l.Makespan, l.Bubble = float64(timeline.Makespan())/float64(unit), idle(timeline)
	return l, err
}

// linkFlags are --latency and --bandwidth of all links between devices.
type linkFlags struct{ plan.Link }

func (l *linkFlags) register(s *pflag.FlagSet) {
	option.Duration(s, &l.Latency, "latency", "`TIME` of a value on its way between two devices, such as 1ms")
	s.Var(&option.Value{Read: func(text string) error {
		amount, found := strings.CutSuffix(text, "/s")
		unit := 1.0
		if number, ok := strings.CutSuffix(amount, "bit"); ok {
			amount, unit = number+"B", 8
		}
		n, err := arg.ParseBytes(amount)
		if l.Bandwidth = float64(n) / unit; !found || err != nil || n < 1 {
			return errors.New("want a rate such as 1.25GB/s or 10Gbit/s")
		}
		return nil
	}}, "bandwidth", "`RATE` of a link between two devices, such as 1.25GB/s or 10Gbit/s")
}
