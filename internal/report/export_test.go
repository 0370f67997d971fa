package report

import "time"

// Building keeps pages and events from being built until release is called.
func (l *Live) Building() (release func()) {
	l.building.Lock()
	return l.building.Unlock
}

// KeepPage sets how long a page is served before another is built.
func (l *Live) KeepPage(life time.Duration) { l.pageLife, l.expiry = life, time.Now().Add(life) }
