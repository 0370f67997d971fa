// Package command is the command penstock. A program can add models and data sets of its own.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
	"penstock.example/internal/launch"
	"penstock.example/internal/option"
	"penstock.example/internal/system"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/torch"
)

// Model is a model of one's own for --model. See [models.Register].
type Model struct {
	Name     string
	Summary  string         // one line
	Kind     models.Kind    // "" is models.Image
	Input    []int64        // the shape of one sample
	Defaults models.Options // the options of --set that are not zero; the data set decides Classes
	New      func(models.Options) (*nn.Sequential, error)
}

func (m Model) register() error {
	return models.Register(models.Info{Name: m.Name, Summary: m.Summary, Kind: m.Kind, Input: m.Input,
		Defaults: m.Defaults}, m.New)
}

// Data is a data set of one's own for --data. See [data.Register].
type Data struct {
	Name  string
	Tasks []data.Task // the possible tasks of its samples
	// Open opens the set, with the path of --data-dir or "".
	Open func(path string, o data.Options) (train, test data.Dataset, err error)
}

func (d Data) register() error { return data.Register(d.Name, d.Tasks, d.Open) }

var programName = "penstock"

var penstockVerb = regexp.MustCompile(`\bpenstock(\s+[a-z])`)

// withProgram replaces penstock before a verb by the program's name.
func withProgram(text string) string { return penstockVerb.ReplaceAllString(text, programName+"$1") }

// Main runs the command line of this process and ends it. Each own is a [Model] or a [Data], which all verbs
// know beside the built-in ones. A run in several processes starts this program in each.
func Main(own ...interface{ register() error }) {
	if len(own) > 0 {
		programName = filepath.Base(os.Args[0])
	}
	for _, o := range own {
		if err := o.register(); err != nil {
			printError(os.Stderr, err)
			os.Exit(exitUsage)
		}
	}
	// These signals ask for an orderly end. A second Ctrl-C kills; other repeats do nothing.
	stops := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGXCPU}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup does
		stops = append(stops, syscall.SIGHUP)
	}
	ctx, _ := signal.NotifyContext(context.Background(), stops...)
	context.AfterFunc(ctx, func() {
		signal.Reset(os.Interrupt)
		if time.Sleep(patience); !losesWork.Load() {
			fmt.Fprintf(os.Stderr, "%s: interrupted; it did not end within %v, and nothing is lost\n",
				programName, patience)
			os.Exit(exitFailed)
		}
	})
	signal.Ignore(syscall.SIGPIPE) // a write to a closed stdout fails, and the run ends in order
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err := os.Stdout.Close(); err != nil && code == exitDone { // a failed write may be reported only here
		fmt.Fprintln(os.Stderr, programName+":", err)
		code = exitFailed
	}
	os.Exit(code)
}

// patience is how long a process may take to end after a signal, unless losesWork is set.
const patience = 5 * time.Second

// losesWork is set when an abrupt end of the process would lose work.
var losesWork atomic.Bool

const (
	exitDone   = 0
	exitFailed = 1            // something failed, or a signal ended the run early
	exitUsage  = launch.Usage // the command line or its input is wrong
)

// run runs a command line and returns its exit code. Results go to stdout, all else to stderr. When ctx ends,
// a training run finishes its step and saves.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out, args := &output{to: stdout}, joinAutocast(args)
	root := newRoot(args)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(stderr)
	err := disk.CheckUTF8([]byte(strings.Join(args, " "))) // a run's files have the arguments, in UTF-8
	if err != nil {
		err = badUsage("the command line, %w", err)
	} else if err = root.ExecuteContext(ctx); err == nil {
		err = out.err
	}
	if err == nil {
		return exitDone
	}
	if stop := ctx.Err(); stop != nil && errors.Is(err, stop) && !errors.As(err, new(*failedError)) {
		err = errors.New("interrupted; nothing is written")
	}
	printError(stderr, err)
	var launched *launch.Failure
	switch {
	case errors.As(err, new(*usageError)):
		return exitUsage
	case errors.As(err, &launched) && launched.Code > 0:
		return launched.Code
	}
	return exitFailed
}

var endlessWord = regexp.MustCompile(`(\S{1000})\S+`)

// printError writes an error as one line, and the stack of a panic.
func printError(stderr io.Writer, err error) {
	fmt.Fprintln(stderr, programName+":", endlessWord.ReplaceAllString(withProgram(message(err)), "$1…"))
	if p := (*torch.PanicError)(nil); errors.As(err, &p) {
		fmt.Fprintf(stderr, "\n%s", p.Stack)
	}
}

var packagePrefix = regexp.MustCompile(`^((train|pipe|data|models|optim|torch|trace|profile|remat|schedule|` +
	`plan|group|launch|metrics|report|toml): )+`)

// message returns the text of an error without names of packages in front.
func message(err error) string { return packagePrefix.ReplaceAllString(err.Error(), "") }

func newRoot(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:   programName,
		Short: "Train neural networks as pipelines of micro-batches",
		Long: `Penstock cuts a network into stages, puts each on a device with its own memory limit, and
trains it as a pipeline of micro-batches. The result is the same, bit for bit, with every
cut.

Exit codes: 0 done, 1 failed or interrupted, 64 wrong command line or input.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       ownVersion(),
		Args:          noArguments,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return wrongInput(system.CheckAddressSpace())
		},
	}
	cobra.AddTemplateFunc("flagHelp", option.Help)
	root.SetUsageTemplate(strings.NewReplacer(".LocalFlags.FlagUsages", "flagHelp .LocalFlags").Replace(
		root.UsageTemplate()))
	root.SetVersionTemplate("penstock {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newTrain(args, os.Getenv, runTraining), newEval(), newPredict(), newExport(),
		newTokenize(), configurable(newBalance()), configurable(newProfile()), configurable(newPlan()),
		newRemat(), newSchedule(), newReport(), newCheckpoint(), newModels(), newLaunch(), newVersion())
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"}) // it is there
	help.Args = func(_ *cobra.Command, args []string) error {
		verb, rest, _ := root.Find(args) // all verbs check their arguments themselves
		return noArguments(verb, rest)
	}
	useProgramName(root)
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		option.Complete(root) // only if asked, as cobra never frees completions
	}
	return root
}

// useProgramName puts the program's name into the help of a command and its verbs.
func useProgramName(c *cobra.Command) {
	c.Short, c.Long, c.Example = withProgram(c.Short), withProgram(c.Long), withProgram(c.Example)
	c.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = withProgram(f.Usage) })
	for _, verb := range c.Commands() {
		useProgramName(verb)
	}
}

// noArguments refuses arguments. For a command with verbs an argument is an unknown verb.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	what, remedy := "unexpected argument", ""
	if cmd.HasSubCommands() {
		what = "unknown command"
		var verbs []string
		for _, c := range cmd.Commands() {
			verbs = append(verbs, c.Name())
		}
		remedy = arg.Meant(args[0], verbs)
	}
	return badUsage("%s %q for %q; %ssee %s --help", what, args[0], cmd.CommandPath(), remedy,
		cmd.CommandPath())
}

// output is standard output that keeps its first error.
type output struct {
	to  io.Writer
	err error
}

func (o *output) Unwrap() io.Writer { return o.to }

func (o *output) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if o.err == nil && len(p) > 0 {
		o.err = err
	}
	return n, err
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of penstock, and of what it runs on",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			devices := fmt.Sprintf("cpu:0 to cpu:%d on %d cores", torch.MaxCPU-1, runtime.NumCPU())
			if n := torch.CUDADevices(); n > 0 {
				devices += fmt.Sprintf(", cuda:0 to cuda:%d", n-1)
			}
			cuda := cmp.Or(system.CUDABuild(), "not in this build")
			if system.CUDABuild() != "" && torch.CUDADevices() == 0 {
				cuda += "; there is no GPU, or no driver for it"
			}
			return printTable(cmd.OutOrStdout(), func(w io.Writer) {
				row(w, "penstock", ownVersion())
				row(w, "libtorch", torch.Version()+", "+system.Library())
				for _, k := range kernelsInUse() {
					row(w, k.Library, k)
				}
				row(w, "CUDA", cuda)
				row(w, "devices", devices)
				row(w, "Go", runtime.Version())
			})
		},
	}
}

// Tests replace kernelsInUse.
var kernelsInUse = system.KernelsInUse

// commit is the commit of sources without a repository; the build sets it with -ldflags.
var commit string

func ownVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return strings.TrimSpace(cmp.Or(info.Main.Version, "unknown") + " " + commit[:min(len(commit), 12)])
}
