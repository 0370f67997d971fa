package command

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/internal/system"
	"penstock.example/torch"
)

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
