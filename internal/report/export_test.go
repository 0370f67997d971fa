package report

import "time"

// Building keeps pages and events from being built until release is called.
func (l *Live) Building() (release func()) {
	l.building.Lock()
	return l.building.Unlock
}

// KeepPage sets how long the present page is served.
func (l *Live) KeepPage(life time.Duration) {
	defer l.Building()()
	l.expiry = time.Now().Add(life)
}
