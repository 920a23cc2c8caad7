package node

import (
	"context"
	"log/slog"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
)

// With the log at debug level each local request is written down as this member sees it: when
// it came, was granted or refused, and gave back. The times (at_ns) are those since the
// machine started, so that the logs of all members on one machine can be put together.

func (n *Node) traceArrival(now admission.Instant, number uint64, attempt uint32) {
	if n.traces {
		n.traceLine("cluster: request came", now, number, attempt)
	}
}

// traceDecided writes down a decision that the gate took.
func (n *Node) traceDecided(now admission.Instant, d *cluster.Decided) {
	switch {
	case !n.traces:
	case d.Granted:
		n.traceLine("cluster: request granted", now, d.Number, d.Attempt, slog.String("prefill", d.Prefill), slog.String("decode", d.Decode),
			slog.Uint64("place_epoch", d.Place.Epoch), slog.Uint64("place", d.Place.Number), slog.Bool("alone", d.Alone), slog.Bool("queued", d.Grant.Queued))
	default:
		reason := admission.GateUnavailable
		if d.Refusal != nil {
			reason = d.Refusal.Reason
		}
		n.traceLine("cluster: request refused", now, d.Number, d.Attempt, slog.String("reason", reason.String()))
	}
}

// traceStep writes down what gives something back.
func (n *Node) traceStep(now admission.Instant, number uint64, attempt uint32, op admission.StepOp) {
	if !n.traces {
		return
	}
	what := ""
	switch op {
	case admission.StepEndPrefill:
		what = "prefill ended"
	case admission.StepEndDecode:
		what = "decode ended"
	case admission.StepCancel:
		what = "canceled"
	case admission.StepRelease:
		what = "released"
	case admission.StepForget:
		what = "over"
	default:
		return
	}
	n.traceLine("cluster: request step", now, number, attempt, slog.String("step", what))
}

func (n *Node) traceLine(message string, now admission.Instant, number uint64, attempt uint32, more ...slog.Attr) {
	n.log.LogAttrs(context.Background(), slog.LevelDebug, message, append([]slog.Attr{
		slog.Int64("at_ns", int64(n.clock.SinceBoot(now))), slog.Uint64("request", number), slog.Uint64("attempt", uint64(attempt)),
	}, more...)...)
}
