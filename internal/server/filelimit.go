package server

import (
	"fmt"
	"time"
)

// How the files (sockets included) that this process may have open are divided, from the
// first one on:
//
//	requests    up to limit-reserve: beyond it, idle connections to engines are closed,
//	            then client connections that have been idle for a second; if there is
//	            none, requests that would go to an engine are refused with 503
//	probes      up to limit-spare: beyond it, idle client connections are closed whatever
//	            their age
//	the rest    accepted connections for which another one is being closed, the port for
//	            metrics, health checks, the log, files that are read
//
// A request counts its client's connection, and its connections to engines from just
// before they are opened: a waiting request has none. Pooled connections to engines may
// be those that running requests have counted; what is open beyond these is idle.
//
// http1.Server.CloseIdle (with --http-stack net, nethttp.Server.CloseIdle) chooses the
// client connection to close: never one whose request was read whole and runs or waits
// in the queue.

// reserve is the number of files that requests leave free.
func reserve(limit int64) int64 { return max(limit/10, 32) }

// spare is the number of files that client connections, those of probes included, leave
// free.
func spare(limit int64) int64 { return max(limit/20, 26) }

// maxScrapers is how many connections the port for metrics may have.
func maxScrapers(limit int) int { return int(min(max(reserve(int64(limit))/8, 4), 64)) }

// requestsWithin is about how many concurrent requests a limit on files allows.
func requestsWithin(limit int64, legs int64) int64 { return max(limit-reserve(limit), 0) / (1 + legs) }

// manyRequests is the number of concurrent requests below which a limit on files is
// worth a warning.
const manyRequests = 1000

// legsPerRequest is how many connections to engines an ordinary request has.
func (s *Server) legsPerRequest() int64 {
	if s.cfg.Fleet.PDDisaggregation {
		return 2
	}
	return 1
}

// warnFileLimit logs a warning at the start if the limit on files is small.
func (s *Server) warnFileLimit() {
	limit := int64(s.opts.MaxFiles)
	if n := requestsWithin(limit, s.legsPerRequest()); n < manyRequests {
		s.log.Warn(fmt.Sprintf("%d files may be open (ulimit -n): good for about %d requests at once", limit, n))
	}
}

// filesInUse is the number of files of client connections, running requests and pooled
// connections to engines.
func (s *Server) filesInUse() int64 {
	return s.conns.Load() - s.main.Leaving() + max(s.legs.Load(), s.opts.Engines.Open())
}

// filesOverLimit is by how much filesInUse exceeds what requests may use; it may be
// negative.
func (s *Server) filesOverLimit() int {
	limit := int64(s.opts.MaxFiles)
	return int(s.filesInUse() - (limit - reserve(limit)))
}

// filesMissing closes idle connections to engines as needed, and returns how many files
// more than requests may use are still in use.
func (s *Server) filesMissing() int {
	over := s.filesOverLimit()
	if over <= 0 {
		return 0
	}
	if idle := int(s.opts.Engines.Open() - s.legs.Load()); idle > 0 {
		s.opts.Engines.CloseIdle(min(over, idle))
		over = s.filesOverLimit()
	}
	return max(over, 0)
}

// filesShort reports whether more files are in use than requests may use.
func (s *Server) filesShort() bool { return s.filesMissing() > 0 }

// full reports whether more files are in use than client connections may use.
func (s *Server) full() bool {
	limit := int64(s.opts.MaxFiles)
	return s.filesInUse() > limit-spare(limit)
}

// makeRoom closes idle client connections to free up to n files that a request has just
// taken, and reports whether enough are free. A whole request takes precedence over those
// that are still being sent.
func (s *Server) makeRoom(n int) bool {
	short := min(s.filesMissing(), n)
	return short == 0 || s.main.CloseIdle(short) >= short
}

// hasFile reports whether there are files for a new request. It may close a connection
// that has none.
func (s *Server) hasFile() bool {
	if s.makeRoom(1) {
		return true
	}
	s.logFilesShort()
	return false
}

// TakeFiles counts n connections that are about to be opened to engines, until
// GiveFiles. It returns false and counts none if there are not that many files left and
// not that many connections without a request to close.
func (s *Server) TakeFiles(n int) bool {
	s.legs.Add(int64(n))
	if !s.makeRoom(n) {
		s.legs.Add(-int64(n))
		s.logFilesShort()
		return false
	}
	return true
}

// GiveFiles ends the count of n connections.
func (s *Server) GiveFiles(n int) { s.legs.Add(-int64(n)) }

// filesShortLogEvery is the least interval of log lines about requests refused for lack of
// files.
const filesShortLogEvery = time.Minute

// logFilesShort logs that requests are refused, at most once in filesShortLogEvery.
func (s *Server) logFilesShort() {
	now := time.Now().UnixNano()
	last := s.filesShortAt.Load()
	if last != 0 && now-last < int64(filesShortLogEvery) || !s.filesShortAt.CompareAndSwap(last, now) {
		s.filesShortMore.Add(1)
		return
	}
	s.log.Warn("requests are refused: the limit on open files (ulimit -n) is almost reached", "limit", s.opts.MaxFiles,
		"clients", s.conns.Load(), "engines", s.legs.Load(), "refused_since_last_told", s.filesShortMore.Swap(0))
}
