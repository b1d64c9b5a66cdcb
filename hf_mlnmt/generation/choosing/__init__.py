"""Choosing among candidates by minimum Bayes risk or by features of other models; confidences of translations."""
