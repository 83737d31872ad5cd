"""How much bandwidth training needs: the model, the published tables, and a figure."""
