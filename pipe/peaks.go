package pipe

import (
	"maps"
	"sync"
)

// peaks is what other processes have said of their devices: the most bytes live, by worker.
type peaks struct {
	mu sync.Mutex
	at map[int]int64
}

func (p *peaks) set(bytes map[int]int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at == nil {
		p.at = map[int]int64{}
	}
	maps.Copy(p.at, bytes)
}

func (p *peaks) of(worker int) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at[worker]
}
