package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/torch"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of penstock and what it runs on",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			devices := fmt.Sprintf("cpu:0 to cpu:%d on %d cores", torch.MaxCPU-1, runtime.NumCPU())
			if n := torch.CUDADevices(); n > 0 {
				devices += fmt.Sprintf(", cuda:0 to cuda:%d", n-1)
			}
			var kernels strings.Builder
			for _, k := range kernelsInUse() {
				fmt.Fprintf(&kernels, "%-8s  %s\n", k.Library, describeKernels(k))
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "penstock  %s\nlibtorch  %s, %s\n%sproducts  %s\nCUDA      %s\ndevices   %s\nGo        %s\n",
				ownVersion(), torch.Version(), torch.Library(), &kernels, describeProducts(), describeCUDA(), devices, runtime.Version())
			return err
		},
	}
}

// kernelsInUse is torch's. Tests replace it.
var kernelsInUse = torch.KernelsInUse

// describeCUDA says whether this build has CUDA, and whether there is a GPU for it.
func describeCUDA() string {
	cuda, nccl := torch.CUDABuild()
	switch {
	case cuda == "":
		return "not in this build"
	case torch.CUDADevices() == 0:
		return fmt.Sprintf("%s with NCCL %s, %s; there is no GPU, or no driver for it", cuda, nccl, torch.CUDALibraries())
	}
	return fmt.Sprintf("%s with NCCL %s, %s", cuda, nccl, torch.CUDALibraries())
}

// describeProducts says what computes linear layers of few and of many rows.
func describeProducts() string {
	const few, many, width = 32, 256, 1024
	return fmt.Sprintf("%d rows by %s, %d rows by %s", few, torch.LinearBy(few, width, width), many, torch.LinearBy(many, width, width))
}

// describeKernels names kernels and who chose them, and says when others would be better.
func describeKernels(k torch.Kernels) string {
	parts := []string{cmp.Or(k.Name, "unnamed") + " kernels"}
	if k.Version != "" {
		parts = append([]string{k.Version}, parts...)
	}
	if k.Name != "" {
		parts = append(parts, "chosen by "+k.By)
	}
	text := strings.Join(parts, ", ")
	if k.Best != "" {
		text += "; the best for this processor are " + k.Best
	}
	return text
}

// ownVersion is that of the program that runs.
func ownVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return versionOf(info, commit)
}

// commit is that of sources without a repository, as a bundle has them; its build sets it with -ldflags.
var commit string

// versionOf is the module's version and the commit that it was built from: the one that go build found, or else the
// given one. With -buildvcs=false, go build finds none.
func versionOf(info *debug.BuildInfo, commit string) string {
	const short = 12 // characters of a commit, as in Go's pseudo-versions
	version, revision, modified := cmp.Or(info.Main.Version, "unknown"), commit, ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				modified = "+dirty"
			}
		}
	}
	revision = revision[:min(len(revision), short)]
	if revision == "" || strings.Contains(version, revision) {
		return version
	}
	return version + " " + revision + modified
}
