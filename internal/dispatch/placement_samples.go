package dispatch

import (
	"errors"

	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/openai"
)

// planSamples says how a request for several samples goes to engines that want a
// call for each. What cannot be made into such calls is refused at once, unless there
// are engines that may take it as it is.
func (x *placement) planSamples() *failure {
	if !x.plan.pair {
		return nil
	}
	fan, err := openai.PlanFan(x.call.Peeked, 0)
	if err != nil {
		f := &failure{reason: reasonBadRequest}
		errors.As(err, &f.local)
		if !x.d.some(func(e engine.Dialect) bool { return !e.FansOut() }) {
			return f
		}
		x.plan.fanFault = f
	}
	x.plan.fan = fan
	return nil
}
