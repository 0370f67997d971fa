package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"penstock/torch"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of penstock and what it runs on",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			devices := fmt.Sprintf("cpu:0 to cpu:%d on %d cores", torch.MaxCPU-1, runtime.NumCPU())
			if torch.CUDA(0).Available() {
				devices += ", cuda"
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "penstock  %s\nlibtorch  %s\nBLAS      %s\ndevices   %s\nGo        %s\n",
				ownVersion(), torch.Version(), cmp.Or(torch.BLASCore(), "does not name its kernels"), devices, runtime.Version())
			return err
		},
	}
}

// ownVersion is the module's version, or the commit that it was built from.
func ownVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	version := cmp.Or(info.Main.Version, "unknown")
	if version != "(devel)" {
		return version
	}
	var revision, modified string
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = " " + s.Value
		case "vcs.modified":
			if s.Value == "true" {
				modified = " with changes"
			}
		}
	}
	return version + revision + modified
}
