package dispatch

import (
	"slices"
	"strconv"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/policy"
)

// readPins reads the headers that bind a leg to a worker. On a worker that runs whole
// requests both mean the same: answers name it as the one that decodes.
func (x *placement) readPins() *failure {
	main, role, kind := admission.DecodeLeg, admission.RoleRegular, admission.RoleRegular
	if x.plan.pair {
		main, role, kind = admission.PrefillLeg, admission.RolePrefill, admission.RoleDecode
	}
	if f := x.pin(HeaderTargetWorker, main, role); f != nil {
		return f
	}
	if f := x.pin(HeaderTargetDecode, admission.DecodeLeg, kind); f != nil {
		return f
	}
	return x.pinRank(main, role)
}

// pinRank binds a leg to the data-parallel rank that the client names by its number
// alone, of the worker that it is bound to or of any. Where workers are scheduled as a
// whole they place the request themselves, and the header does not count.
func (x *placement) pinRank(leg admission.Leg, role admission.Role) *failure {
	if !x.d.cfg.Fleet.DPAware {
		return nil
	}
	want, f := x.wantedRank()
	if want == "" || f != nil {
		return f
	}
	worker, rank, numbered := admission.SplitRankID(x.spec.Pins[leg])
	n, err := strconv.ParseUint(want, 10, 16)
	switch {
	case err != nil || !x.d.fleet.HasRank(x.spec.Model, worker, role, int(n)):
		return &failure{reason: reasonBadRequest,
			local: openai.InvalidTarget(want, "it is no number of a data-parallel rank that a "+role.String()+" worker of the model has; they are counted from 0")}
	case numbered && rank != int(n):
		return twoPins(x.spec.Pins[leg])
	case !numbered && worker != "":
		x.spec.Pins[leg], _, _ = x.d.fleet.ResolvePin(worker+"@"+itoa(int(n)), role)
	case !numbered:
		x.spec.Pins[leg] = "@" + itoa(int(n))
	}
	return nil
}

// wantedRank is the number of a data-parallel rank that the client names; empty if it
// names none. A router in front, which has paired the engines, may name it in the body.
func (x *placement) wantedRank() (string, *failure) {
	want, f := x.steering(HeaderDPRank)
	if want != "" || f != nil {
		return want, f
	}
	for _, field := range []openai.Field{openai.FieldRoutedDPRank, openai.FieldDataParallelRank} {
		switch x.call.Peeked.FieldKind(field) {
		case openai.KindAbsent, openai.KindNull:
		default:
			return string(x.call.Peeked.Raw(field)), nil
		}
	}
	return "", nil
}

func (x *placement) pin(header string, leg admission.Leg, role admission.Role) *failure {
	want, f := x.steering(header)
	if want == "" || f != nil {
		return f
	}
	pin, f := x.resolvePin(want, header, role, x.spec.Model, role.String()+" ")
	if f != nil {
		return f
	}
	if other := x.spec.Pins[leg]; other != "" && other != pin {
		return twoPins(want)
	}
	x.spec.Pins[leg] = pin
	return nil
}

// resolvePin finds the worker of a pin; kind is what a message calls it.
func (x *placement) resolvePin(want, header string, role admission.Role, model, kind string) (string, *failure) {
	pin, models, ok := x.d.fleet.ResolvePin(want, role)
	if !ok {
		return "", &failure{reason: reasonBadRequest,
			local: openai.InvalidTarget(want, header+" names no "+kind+"worker; it takes a worker's index, URL, id, or URL@rank")}
	}
	if !slices.Contains(models, model) && !slices.Contains(models, "") {
		return "", &failure{reason: reasonBadRequest,
			local: openai.InvalidTarget(want, "that worker does not serve the model asked for")}
	}
	return pin, nil
}

func twoPins(want string) *failure {
	return &failure{reason: reasonBadRequest,
		local: openai.InvalidTarget(want, HeaderTargetDecode+", "+HeaderTargetWorker+" and "+HeaderDPRank+" name different workers or ranks for the one that serves the request")}
}

// steering is the value of a header that says where a request goes, "" for none. One
// that is there twice with two values says nothing.
func (x *placement) steering(header string) (string, *failure) {
	values := x.call.Header[header]
	for _, v := range values {
		if v != values[0] {
			return "", &failure{reason: reasonBadRequest,
				local: openai.InvalidRequest("", "the header %s is there twice with different values; send it once", header)}
		}
	}
	if len(values) == 0 {
		return "", nil
	}
	return values[0], nil
}

// readHints tells the policies what binds requests together: the routing key, else
// the session, else the user.
func (x *placement) readHints() *failure {
	key, f := x.steering(HeaderRoutingKey)
	if f != nil {
		return f
	}
	if key == "" {
		if key = x.call.Peeked.SessionID(); key == "" {
			key = x.call.Peeked.User()
		}
	}
	if key == "" {
		return nil
	}
	h := admission.Hint{Key: policy.HashKey(key), HasKey: true}
	x.ticket.Hints[admission.PrefillLeg], x.ticket.Hints[admission.DecodeLeg] = h, h
	return nil
}
