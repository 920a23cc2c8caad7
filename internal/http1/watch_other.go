//go:build !linux

package http1

// watcher is for Linux. Elsewhere there is peeker.
type watcher struct{}

func (w *watcher) start() error { return nil }
func (w *watcher) add(*conn)    {}
func (w *watcher) remove(*conn) {}
func (w *watcher) stop()        {}

func (c *conn) unreadBytes() bool { return false }
