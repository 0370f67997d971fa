package torch_test

import (
	"os"
	"path/filepath"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/torch"
)

func TestAvailableMemoryIsTheLeastOfMachineAndCgroups(t *testing.T) {
	const machine = "MemTotal:  2000 kB\nMemAvailable:    1000 kB\n" // 1024000 bytes
	for _, test := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"no cgroups", nil, 1024000},
		{"version 2, the process's own", map[string]string{
			"proc/self/cgroup":             "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "700000\n", "sys/fs/cgroup/a/b/memory.current": "300000\n",
			"sys/fs/cgroup/a/b/memory.stat": "active_file 7\ninactive_file 20000\nslab 9\n",
			"sys/fs/cgroup/a/memory.max":    "max\n", "sys/fs/cgroup/a/memory.current": "900000\n",
		}, 420000},
		{"version 2, the one above", map[string]string{
			"proc/self/cgroup":             "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "700000\n", "sys/fs/cgroup/a/b/memory.current": "300000\n",
			"sys/fs/cgroup/a/memory.max": "900000\n", "sys/fs/cgroup/a/memory.current": "600000\n",
		}, 300000},
		{"version 2, a container's, which is its root", map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "500000\n", "sys/fs/cgroup/memory.current": "100000\n",
		}, 400000},
		{"version 2, above what the machine has", map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "5000000\n", "sys/fs/cgroup/memory.current": "100000\n",
		}, 1024000},
		{"version 2, more taken than the limit", map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "500000\n", "sys/fs/cgroup/memory.current": "500001\n",
		}, 0},
		{"version 1", map[string]string{
			"proc/self/cgroup": "9:name=systemd:/\n5:cpu,memory:/c\n1:pids:/\n0::/\n",
			"sys/fs/cgroup/memory/c/memory.limit_in_bytes": "600000\n", "sys/fs/cgroup/memory/c/memory.usage_in_bytes": "400000\n",
			"sys/fs/cgroup/memory/c/memory.stat":         "inactive_file 1\ntotal_inactive_file 50000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "900000\n",
		}, 250000},
		{"version 1, a container that is told the host's path", map[string]string{
			"proc/self/cgroup":                           "4:memory:/docker/0123\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "600000\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "400000\n",
		}, 200000},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			write := func(name, text string) {
				at := filepath.Join(root, name)
				must.Do(t, os.MkdirAll(filepath.Dir(at), 0o777))
				must.Do(t, os.WriteFile(at, []byte(text), 0o666))
			}
			write("proc/meminfo", machine)
			for name, text := range test.files {
				write(name, text)
			}
			if got, err := torch.AvailableMemoryUnder(root); err != nil || got != test.want {
				t.Errorf("%d bytes (%v), want %d", got, err, test.want)
			}
		})
	}
}
